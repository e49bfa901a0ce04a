"""Bad values."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

BOUNDED = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck))
"""The same inputs in every run, and no limit to the time of one."""

NO_NUMBERS = st.one_of(
    st.text(max_size=4), st.just([]), st.just([2, 3]), st.just({}),
    st.just(b'8'), st.just(1j))
NO_POSITIVE_INTEGERS = st.one_of(
    NO_NUMBERS, st.none(), st.integers(max_value=0), st.floats())
NO_POSITIVE_NUMBERS = st.one_of(
    NO_NUMBERS, st.booleans(), st.floats(max_value=0),
    st.integers(max_value=0), st.just(float('nan')), st.just(float('inf')))
NOT_FINITE = st.sampled_from([float('nan'), float('inf'), -float('inf')])


def refused(named, build, *errors):
    """Call what must raise an error that names the argument."""
    with pytest.raises(errors or ValueError) as raised:
        build()
    assert named in str(raised.value), raised.value
    return str(raised.value)
