"""NaN that is given to propagation is seen."""

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mmstepnet.propagation import metric_propagation

BOUNDED = settings(
    deadline=None, derandomize=True, database=None,
    suppress_health_check=list(HealthCheck))


@BOUNDED
@given(data=st.data())
def test_propagation_shows_nan(data):
    """To every point that it informs."""
    nodes, width = data.draw(st.tuples(st.integers(2, 40), st.integers(1, 9)))
    tensors = list(torch.randn(3, 2, nodes, width))
    which = data.draw(st.integers(0, 2))
    node = data.draw(st.integers(0, nodes - 1))
    tensors[which][1, node, data.draw(st.integers(0, width - 1))] = (
        float('nan'))
    is_causal = data.draw(st.booleans())
    for tensor in tensors:
        tensor.requires_grad_(data.draw(st.booleans()))
    out = metric_propagation(*tensors, 1.0, is_causal=is_causal)
    expected = torch.zeros(2, nodes, dtype=torch.bool)
    expected[1, slice(node, node + 1) if which == 0 else slice(
        node if is_causal else 0, None)] = True
    got = out.isnan().any(-1)
    if is_causal:
        # A kernel may multiply by the weight 0 what is later.
        assert (got >= expected).all() and not got[0].any()
    else:
        assert torch.equal(got, expected)
