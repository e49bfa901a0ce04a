"""Bad values."""

import importlib.util
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[2]

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


def load_tool(name):
    """A tool, or a program of a project, as a module."""
    if name.startswith(('benchmarks.', 'projects.')):
        return importlib.import_module(name)
    path = ROOT / 'tools' / name
    if str(path.parent) not in sys.path:  # tools import their neighbours
        sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def call_tool(module, *arguments):
    """Call a tool's main() with a command line."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, 'argv', [module.__name__, *map(str, arguments)])
        return module.main()
