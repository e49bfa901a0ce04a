"""Propagation over edges of PyTorch Geometric and of a sparse mask."""

import pytest
import torch

from mmstepnet.propagation import (
    L2,
    AttentionBlock,
    DotProduct,
    GraphAttention,
    Metric,
    Propagation,
    neighbourhood,
)
from tests.utils import perturb

pytest.importorskip('torch_geometric', reason='needs torch_geometric')


@pytest.mark.parametrize('kind', [DotProduct, L2, Metric, GraphAttention])
@pytest.mark.parametrize('heads', [0, 2])
def test_sparse_mask(kind, heads):
    from mmstepnet.integrations.torch_geometric import PropagationConv
    torch.manual_seed(0)
    module = AttentionBlock(8, heads, eps=2.0, pseudo_metric=kind) if (
        heads) else Propagation(8, kind, eps=2.0)
    perturb(module.double())
    x = torch.randn(10, 8, dtype=torch.double)
    mask = neighbourhood(torch.randint(10, (20, 2)), 10)
    receivers, sources = mask.indices()
    edges = torch.stack([sources, receivers])
    conv = PropagationConv(module)
    torch.testing.assert_close(conv(x, edges), module(x, mask=mask))
    order = torch.randperm(edges.shape[1])
    torch.testing.assert_close(conv(x, edges[:, order]), module(x, mask=mask))


def test_bipartite():
    """Edges in one direction, from other nodes."""
    from mmstepnet.integrations.torch_geometric import PropagationConv
    torch.manual_seed(0)
    module = AttentionBlock(8, 2).double()
    sources, x = (torch.randn(n, 8, dtype=torch.double) for n in (5, 3))
    mask = torch.tensor([[1, 1, 0, 0, 1], [0, 1, 0, 0, 0], [0, 0, 1, 1, 0]]
                        ).bool().to_sparse_coo()
    receivers, senders = mask.coalesce().indices()
    torch.testing.assert_close(
        PropagationConv(module)((sources, x),
                                torch.stack([senders, receivers])),
        module(x, sources, mask=mask))
