"""Compilers and functorch."""

import warnings

import pytest
import torch

from mmstepnet.propagation import MetricAttention, metric_propagation
from tests.test_propagation.references import (
    EPS,
    FORMS,
    N,
    by_numpy,
    error,
    points,
)
from tests.utils import not_on_torch_21


def test_gradient_transform():
    a, b, v = points(4)
    gradient = torch.func.grad(
        lambda b: metric_propagation(a, b, v, EPS).square().sum())(b)
    own = b.clone().requires_grad_()
    out = metric_propagation(a, own, v, EPS, dense=True)
    out.square().sum().backward()
    assert error(gradient, own.grad) < 1e-10


@not_on_torch_21('has no batching rule for its attention kernel')
@pytest.mark.parametrize('dense', [False, True])
def test_a_mask_for_each_sample(dense):
    """Under vmap, as for gradients of each sample of padded tokens."""
    a, b, v = points(4)
    mask = torch.rand(4, 1, b.shape[-2]) > 0.4
    mask[..., 0] = True
    each = torch.func.vmap(lambda *x: metric_propagation(
        *x[:3], EPS, x[3], dense=dense))
    with warnings.catch_warnings():
        # PyTorch batches its kernel by a loop, and says so.
        warnings.filterwarnings('ignore', message='There is a performance')
        batched = each(a, b, v, mask)
        assert error(batched, metric_propagation(
            a, b, v, EPS, mask, dense=True)) < 1e-10
        with pytest.raises(ValueError, match='leaves no source'):
            each(a, b, v, mask & (torch.arange(4) != 2)[:, None, None])


def exported(model, x):
    dim = torch.export.Dim('tokens', min=2, max=4096)
    return torch.export.export(
        model, (x, ), dynamic_shapes=({1: dim}, )).module()


@pytest.mark.filterwarnings('ignore::torch.jit.TracerWarning')
@pytest.mark.parametrize('make', [torch.jit.trace, pytest.param(
    exported, marks=not_on_torch_21('has another exporter'))])
def test_graphs_for_any_number_of_tokens(make):
    model = MetricAttention(16, 2).eval()
    for tokens in (10, 40):
        graph = make(model, torch.randn(2, tokens, 16))
        for other in (5, 300):
            x = torch.randn(2, other, 16)
            torch.testing.assert_close(graph(x), model(x))


@not_on_torch_21("breaks the graph at autocast's dtype")
@pytest.mark.parametrize('backend', ['eager', 'aot_eager'])
@pytest.mark.parametrize('form', FORMS)
def test_compiled_code_refuses_a_row_without_a_source(form, backend):
    """Padding on the left leaves the first rows nothing to see."""
    torch.compiler.reset()
    compiled = torch.compile(FORMS[form], backend=backend, fullgraph=True)
    a, b, v = points(2)
    mask = torch.ones(2, 1, N, dtype=torch.bool)
    mask[..., :5] = False
    for kwargs in (dict(mask=mask), dict(mask=mask.expand(2, N, N))):
        out = compiled(a, b, v, **kwargs)
        assert error(out, by_numpy(form, a, b, v, **kwargs)) < 1e-10
    with pytest.raises(RuntimeError, match='leaves no source'):
        compiled(a, b, v, is_causal=True, **kwargs)
    out = compiled(a, b, v, is_causal=True, mask=mask)
    assert error(out, by_numpy(form, a, b, v, mask, True)) < 1e-10
    mask[0] = False
    with pytest.raises(RuntimeError, match='leaves no source'):
        compiled(a, b, v, is_causal=True, mask=mask)
