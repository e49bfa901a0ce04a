import math

import pytest
import torch
from torch import nn

from mmstepnet.propagation import (
    L2,
    AttentionBlock,
    DotProductAttention,
    GraphAttention,
    L2Attention,
    MetricAttention,
    ProjectedSources,
    Propagation,
    PseudoMetric,
)
from tests.test_propagation.references import by_numpy
from tests.utils import copy_attention, not_on_torch_21, perturb, same


def alone(embed_dims, num_heads=1, **kwargs):
    """S . H, which has one head."""
    return Propagation(embed_dims, **kwargs)


def graph_block(embed_dims, num_heads=1, **kwargs):
    return AttentionBlock(
        embed_dims, num_heads, pseudo_metric=GraphAttention, **kwargs
    )


BLOCKS = (DotProductAttention, L2Attention, MetricAttention)
MODULES = (*BLOCKS, graph_block, alone)


def build(cls, *args, dtype=torch.float64, **kwargs):
    return perturb(cls(*args, **kwargs)).to(dtype)


@pytest.mark.parametrize(
    'heads, eps, bias', [(1, 1.0, True), (3, 0.7, True), (3, 1.0, False)]
)
@pytest.mark.parametrize('grad', [False, True])
def test_written_out(heads, eps, bias, grad):
    """Linear maps around Algorithm 1, one head after the other."""
    x, sources = torch.randn(7, 12).double(), torch.randn(9, 12).double()
    l2 = build(L2Attention, 12, heads, bias=bias, eps=eps)
    metric = build(
        MetricAttention, 12, heads, bias=bias, hidden_dims=5, eps=eps
    )
    own = metric.pseudo_metric
    for module, phi in (
        (l2, l2.pseudo_metric.metric),
        (metric, lambda x: x + own.metric(own.hidden(x).tanh())),
    ):
        for other in (x, sources):
            with torch.set_grad_enabled(grad):
                out = module(x, None if other is x else other)
            expected = torch.cat(
                [
                    by_numpy('metric', *parts, eps=eps)
                    for parts in zip(
                        *(
                            t.chunk(heads, -1)
                            for t in (phi(x), phi(other), module.value(other))
                        )
                    )
                ],
                -1,
            )
            if heads > 1:
                expected = module.proj(expected)
            torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize('cls', MODULES)
def test_sources_projected_one_by_one(cls):
    """As a decoder does, whose next token joins those before."""
    module = build(cls, 12, 3)
    x, sources = torch.randn(2, 7, 12).double(), torch.randn(2, 9, 12).double()
    parts = [module.project(sources[:, i : i + 1]) for i in range(9)]
    projected = ProjectedSources(*(torch.cat(p, -2) for p in zip(*parts)))
    mask = torch.rand(2, 1, 9) < 0.7
    mask[..., 0] = True
    torch.testing.assert_close(
        module(x, projected, mask=mask),
        module(x, sources, mask=mask),
        rtol=1e-12,
        atol=1e-12,
    )


@pytest.mark.parametrize('is_causal', [False, True])
def test_dot_product_is_torch_attention(is_causal):
    """PyTorch's own module, given the same weights."""
    ours = build(DotProductAttention, 12, 3, eps=math.sqrt(12 / 3))
    theirs = nn.MultiheadAttention(12, 3, batch_first=True).double()
    copy_attention(theirs, ours)
    x = torch.randn(2, 7, 12).double()
    kept = torch.arange(7) < torch.tensor([[7], [4]])
    later = torch.ones(7, 7, dtype=torch.bool).triu(1)
    expected, _ = theirs(
        x, x, x, key_padding_mask=~kept, attn_mask=later if is_causal else None
    )
    for dense in (False, True):
        out = ours(x, mask=kept.unsqueeze(1), is_causal=is_causal, dense=dense)
        torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-10)


@not_on_torch_21("breaks the graph at autocast's dtype")
@pytest.mark.parametrize('cls', [MetricAttention, graph_block])
def test_compile(cls):
    """One that PyTorch's kernel computes, and one that compares pairs."""
    torch.compiler.reset()
    module = build(cls, 8, 2)
    compiled = torch.compile(module, backend='aot_eager', fullgraph=True)
    x = torch.randn(2, 6, 8).double()
    kept = torch.arange(6) < torch.tensor([[[6]], [[3]]])
    for kwargs in ({}, dict(mask=kept), dict(is_causal=True)):
        outs = [net(x, **kwargs) for net in (compiled, module)]
        same(*outs)
        same(
            *(
                torch.autograd.grad(
                    out.square().sum(), module.pseudo_metric.parameters()
                )
                for out in outs
            )
        )
        with torch.no_grad():
            same(compiled(x, **kwargs), outs[1])


def test_a_users_pseudo_metric_serves_everything():
    """By what it compares alone: on all pairs, under masks, on edges."""

    class Manhattan(PseudoMetric):
        def map_receivers(self, x):
            return self.split_heads(x)

        map_sources = map_receivers

        def compare(self, a, b):
            return (a - b).abs().sum(-1)

    x = torch.randn(2, 5, 6)
    seen = torch.rand(5, 5) < 0.4
    seen.fill_diagonal_(True)
    f = torch.cdist(x, x, p=1).masked_fill(~seen, torch.inf)
    module = Propagation(6, Manhattan)
    for mask in (seen, seen.to_sparse()):
        torch.testing.assert_close(
            module(x, mask=mask), torch.softmax(-f, -1) @ x
        )
    block = AttentionBlock(6, 2, pseudo_metric=Manhattan)
    assert block(x, mask=seen).shape == x.shape


@pytest.mark.parametrize(
    'module, words',
    [
        pytest.param(
            MetricAttention(8, 2, eps=3.0, hidden_dims=5),
            ['8, num_heads=2, eps=3', 'Metric(', 'out_features=5'],
            id='metric-attention',
        ),
        pytest.param(
            Propagation(8, GraphAttention),
            ['8, eps=1', '8, num_heads=1, activation=leaky_relu'],
            id='propagation',
        ),
        pytest.param(
            AttentionBlock(8, 4, pseudo_metric=L2),
            ['8, num_heads=4, eps=1', 'L2('],
            id='block',
        ),
    ],
)
def test_print_shows_what_was_chosen(module, words):
    for word in words:
        assert word in repr(module)
