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
    """In any order of the edges; the last three nodes only give."""
    from mmstepnet.integrations.torch_geometric import PropagationConv

    torch.manual_seed(0)
    module = (
        AttentionBlock(8, heads, eps=2.0, pseudo_metric=kind)
        if (heads)
        else Propagation(8, kind, eps=2.0)
    )
    conv = PropagationConv(perturb(module.double()))
    assert repr(conv) == f'PropagationConv({module})'
    x = torch.randn(10, 8, dtype=torch.double)
    mask = neighbourhood(torch.randint(10, (20, 2)), 10)
    some = mask.to_dense()[:7].to_sparse().coalesce()
    for edges, given, wanted in (
        (mask, x, module(x, mask=mask)),
        (some, (x, x[:7]), module(x[:7], x, mask=some)),
    ):
        receivers, sources = edges.indices()
        order = torch.randperm(len(sources))
        torch.testing.assert_close(
            conv(given, torch.stack([sources, receivers])[:, order]), wanted
        )
