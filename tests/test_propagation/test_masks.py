import warnings

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from mmstepnet.propagation import metric_propagation, neighbourhood
from mmstepnet.propagation.masks import check_mask


def take(mask, n=4, m=4, lead=(2, 3), **kwargs):
    a, b, v = (torch.randn(*lead, s, 5) for s in (n, m, m))
    return metric_propagation(a, b, v, 1.0, mask, **kwargs)


def test_no_wait_for_a_gpu():
    """A fake tensor raises where its value would be asked for."""
    with FakeTensorMode():
        mask = torch.ones(4, 4, dtype=torch.bool, device='cuda')
        for is_causal in (False, True):
            assert check_mask(mask, 4, 4, is_causal) is mask
            check_mask(mask[:1], 4, 4, is_causal)
        with pytest.raises(Exception, match='data-dependent|_local_scalar'):
            bool(mask.all())


def test_an_edge_given_twice_counts_once():
    outs = []
    for pairs in ([[0, 0, 1, 2, 3], [0, 1, 1, 2, 3]],
                  [[0, 0, 0, 1, 2, 3], [0, 1, 1, 1, 2, 3]]):
        torch.manual_seed(0)
        edges = torch.tensor(pairs)
        outs.append(take(torch.sparse_coo_tensor(
            edges, torch.ones(edges.shape[1], dtype=torch.bool), (4, 4))))
    torch.testing.assert_close(*outs)


@pytest.mark.parametrize('both', [False, True])
def test_neighbourhood(both):
    edges = torch.tensor([[0, 1], [3, 1], [0, 4]])
    if both:
        edges = torch.cat([edges, edges.flip(1)])
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        mask = neighbourhood(edges, 5)
        take(mask, 5, 5)
    expected = torch.eye(5, dtype=torch.bool)
    for i, j in ((0, 1), (3, 1), (0, 4)):
        expected[i, j] = expected[j, i] = True
    assert mask.dtype == torch.bool and mask.is_coalesced()
    assert torch.equal(mask.to_dense(), expected)
    # What says of itself that it is coalesced, is.
    assert torch.equal(mask.indices(), expected.to_sparse().indices())
