import warnings

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mmstepnet.propagation import (
    masks,
    metric_propagation,
    neighbourhood,
)
from mmstepnet.propagation.masks import check_mask


def take(mask, n=4, m=4, lead=(2, 3), **kwargs):
    a, b, v = (torch.randn(*lead, s, 5) for s in (n, m, m))
    return metric_propagation(a, b, v, 1.0, mask, **kwargs)


def sparse(rows, columns, shape, values=None):
    if values is None:
        values = torch.ones(len(rows), dtype=torch.bool)
    with torch.sparse.check_sparse_tensor_invariants():
        return torch.sparse_coo_tensor(
            torch.tensor([rows, columns]), values, shape)


@pytest.mark.parametrize('shape', [(4, 3), (3, 4), (2, 4, 4), (4, ), (),
                                   (1, 2, 3, 4, 4), (2, 2, 4, 4)])
def test_shape(shape):
    with pytest.raises(ValueError, match=r'broadcast to \(2, 3, 4, 4\)'):
        take(torch.ones(shape, dtype=torch.bool))


@pytest.mark.parametrize('mask', [
    torch.ones(4, 4), torch.zeros(4, 4), torch.ones(4, 4, dtype=torch.int64),
    torch.ones(4, 4).to_sparse(), np.ones((4, 4), dtype=bool), [[True]]
])
@pytest.mark.parametrize('dense', [False, True])
def test_type(mask, dense):
    with pytest.raises(TypeError, match='must be a bool tensor'):
        take(mask, dense=dense)


@pytest.mark.filterwarnings('ignore:Sparse CSR')
def test_layout():
    with pytest.raises(ValueError, match='to_sparse_coo'):
        take(torch.ones(4, 4, dtype=torch.bool).to_sparse_csr())


@pytest.mark.parametrize('dense', [False, True])
def test_isolated_node(dense):
    mask = torch.eye(4, dtype=torch.bool)
    take(mask, dense=dense)
    mask[2, 2] = False
    with pytest.raises(ValueError, match='row 2 of the mask.*no source'):
        take(mask, dense=dense)
    with pytest.raises(ValueError, match='node 2 has no neighbour'):
        take(mask.to_sparse(), dense=dense)
    batch = torch.ones(2, 1, 4, 4, dtype=torch.bool)
    batch[1, 0, 3] = False
    with pytest.raises(ValueError, match=r'row 3 of \(1, 0\) of the mask'):
        take(batch, dense=dense)


@pytest.mark.parametrize('dense', [False, True])
def test_causal_leaves_nothing(dense):
    """The first point sees only what is shut out."""
    left = torch.tensor([False, True, True, True])
    take(left.expand(4, 4), dense=dense)
    with pytest.raises(ValueError, match='row 0.*at or before it'):
        take(left.expand(4, 4), is_causal=True, dense=dense)
    with pytest.raises(ValueError, match='no source'):
        take(torch.zeros(1, 4, dtype=torch.bool), is_causal=True, dense=dense)
    take(left.flip(0)[None], is_causal=True, dense=dense)
    upper = torch.ones(4, 4, dtype=torch.bool).triu(1)
    upper[0, 0] = upper[3, 0] = True
    with pytest.raises(ValueError, match='row 1.*at or before it'):
        take(upper, is_causal=True, dense=dense)


def test_no_wait_for_a_gpu():
    """A fake tensor raises where its value would be asked for."""
    fake_tensor = pytest.importorskip('torch._subclasses.fake_tensor')
    with fake_tensor.FakeTensorMode():
        mask = torch.ones(4, 4, dtype=torch.bool, device='cuda')
        for is_causal in (False, True):
            assert check_mask(mask, 4, 4, is_causal) is mask
            check_mask(mask[:1], 4, 4, is_causal)
        with pytest.raises(Exception, match='data-dependent|_local_scalar'):
            bool(mask.all())


def test_edges_without_a_wait(monkeypatch):
    """What decides over a sparse mask is asked on the device alone."""
    asked = []
    monkeypatch.setattr(masks, '_refuse_unless',
                        lambda good, *_: asked.append(good))
    mask = torch.eye(4, dtype=torch.bool).to_sparse()

    class Waits(TorchDispatchMode):

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            name = function.name().partition('::')[2].partition('.')[0]
            assert name not in ('_local_scalar_dense', 'nonzero', 'bincount',
                                '_unique2', 'item'), name
            return function(*args, **kwargs or {})
    with Waits():
        check_mask(mask, 4, 4)
    assert all(asked) and len(asked) == 2


def test_integers_are_not_taken_for_additive_masks():
    with pytest.raises(TypeError, match='int64; one of 1 where j may inform '
                       'i becomes mask == 1'):
        take(torch.ones(4, 4, dtype=torch.int64))
    with pytest.raises(TypeError, match='additive one becomes mask == 0, one '
                       'of 1.0 .* becomes mask == 1'):
        take(torch.zeros(4, 4))


def test_causal_beside_a_sparse_mask():
    with pytest.raises(ValueError, match='beside a sparse mask'):
        take(torch.eye(4, dtype=torch.bool).to_sparse(), is_causal=True)


def test_sparse():
    with pytest.raises(ValueError, match=r'\(4, 4\), got \(4, 5\)'):
        take(torch.ones(4, 5, dtype=torch.bool).to_sparse())
    with pytest.raises(ValueError, match='stores False too'):
        take(sparse([0, 1, 2, 3], [0, 1, 2, 3], (4, 4),
                    torch.tensor([True, True, False, True])))


def test_an_edge_given_twice_counts_once():
    torch.manual_seed(0)
    once = take(sparse([0, 0, 1, 2, 3], [0, 1, 1, 2, 3], (4, 4)))
    torch.manual_seed(0)
    twice = take(sparse([0, 0, 0, 1, 2, 3], [0, 1, 1, 1, 2, 3], (4, 4)))
    torch.testing.assert_close(once, twice)


@pytest.mark.parametrize('both', [False, True])
def test_neighbourhood(both):
    edges = torch.tensor([[0, 1], [3, 1], [0, 4]])
    if both:
        edges = torch.cat([edges, edges.flip(1)])
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('error')
            mask = neighbourhood(edges, 5)
            take(mask, 5, 5)
    finally:
        torch.set_warn_always(False)
    expected = np.eye(5, dtype=bool)
    for i, j in ((0, 1), (3, 1), (0, 4)):
        expected[i, j] = expected[j, i] = True
    assert mask.dtype == torch.bool and mask.is_coalesced()
    assert np.array_equal(mask.to_dense().numpy(), expected)
    # What says of itself that it is coalesced, is.
    assert torch.equal(
        mask.indices(), torch.from_numpy(expected).to_sparse().indices())


def test_neighbourhood_without_edges():
    mask = neighbourhood(torch.zeros(0, 2, dtype=torch.int64), 3)
    assert torch.equal(mask.to_dense(), torch.eye(3, dtype=torch.bool))


@pytest.mark.parametrize('edges,message', [
    (torch.zeros(2, 3, dtype=torch.int64), r'got \(2, 3\)'),
    (torch.zeros(4, dtype=torch.int64), r'got \(4,\)'),
    (torch.zeros(2, 2), 'torch.float32'),
    (torch.tensor([[0, 4]]), 'there are 4'),
    (torch.tensor([[-1, 2]]), 'nodes -1 to 2'),
])
def test_bad_edges(edges, message):
    with pytest.raises(ValueError, match=message):
        neighbourhood(edges, 4)
