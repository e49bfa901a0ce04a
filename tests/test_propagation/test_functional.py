import math

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from mmstepnet.propagation import metric_propagation, sdpa
from tests.test_propagation.references import (
    EPS,
    FORMS,
    TOLERANCE,
    N,
    by_numpy,
    error,
    gradients,
    graph,
    masks,
    no_matrix,
    points,
)


@pytest.mark.parametrize('form', FORMS)
@pytest.mark.parametrize('name', masks())
@pytest.mark.parametrize('dtype', TOLERANCE)
def test_three_evaluations(form, name, dtype, monkeypatch):
    function, kwargs = FORMS[form], masks()[name]
    inputs = points(2, 3, dtype=dtype)
    expected = by_numpy(form, *inputs, **kwargs)
    matrix = gradients(function, inputs, dense=True, **kwargs)
    assert error(matrix[0], expected) < TOLERANCE[dtype]
    no_matrix(monkeypatch)
    fused = gradients(function, inputs, **kwargs)
    for got, want in zip(fused, matrix):
        assert got.dtype == dtype
        assert error(got, want) < TOLERANCE[dtype]
    with torch.no_grad():
        out = function(*inputs, **kwargs)
    assert error(out, expected) < TOLERANCE[dtype]


@pytest.mark.parametrize('name', ['all', 'boolean', 'key padding'])
@pytest.mark.parametrize('form', FORMS)
def test_other_shapes(form, name):
    """More receivers than sources or fewer, other widths of the values."""
    for n, m, d, e in ((7, 19, 5, 3), (19, 7, 3, 11), (1, 19, 8, 8),
                       (19, 1, 8, 8), (5, 5, 1, 1)):
        kwargs = masks(n, m)[name]
        inputs = points(2, 3, n=n, m=m, d=d, e=e)
        expected = by_numpy(form, *inputs, **kwargs)
        fused = gradients(FORMS[form], inputs, **kwargs)
        matrix = gradients(FORMS[form], inputs, dense=True, **kwargs)
        assert error(fused[0], expected) < 1e-10
        assert error(FORMS[form](*inputs, **kwargs), expected) < 1e-10
        for got, want in zip(fused, matrix):
            # One source: its weight is 1, and no other gradient than v's.
            assert (got - want).abs().max() < 1e-10 * (1 + want.abs().max())


@pytest.mark.parametrize('lead', [(), (3, ), (2, 3), (2, 1, 3), (2, 1, 2, 3)])
@pytest.mark.parametrize('form', FORMS)
def test_leading_dimensions(form, lead):
    inputs = points(*lead, n=5, m=7)
    keys = torch.ones(*lead, 1, 7, dtype=torch.bool)
    keys[..., 5:] = False
    for kwargs in ({}, dict(mask=keys), dict(mask=keys.expand(*lead, 5, 7))):
        expected = by_numpy(form, *inputs, **kwargs)
        for out in (FORMS[form](*inputs, **kwargs),
                    gradients(FORMS[form], inputs, **kwargs)[0]):
            assert error(out, expected) < 1e-10


@pytest.mark.parametrize('form', FORMS)
@pytest.mark.parametrize('name', masks())
def test_kernels_that_take_no_mask(form, name, monkeypatch):
    """PyTorch 2.1 on a CPU: masks of sources must not reach the kernel."""
    kwargs = masks()[name]
    inputs = points(2, 3)
    expected = by_numpy(form, *inputs, **kwargs)
    monkeypatch.setattr(sdpa, 'CPU_TAKES_MASK', False)
    kernel, seen = sdpa.F.scaled_dot_product_attention, []

    def watch(*args, attn_mask, **kwargs):
        seen.append(attn_mask)
        return kernel(*args, attn_mask=attn_mask, **kwargs)

    monkeypatch.setattr(sdpa.F, 'scaled_dot_product_attention', watch)
    assert error(FORMS[form](*inputs, **kwargs), expected) < 1e-10
    (mask, ) = seen
    assert (mask is None) == ('boolean' not in name)


def test_some_gradients_only():
    """b decides about the form; a and v get theirs in both."""
    inputs = points(2, 3)
    matrix = gradients(FORMS['metric'], inputs, dense=True)[1:]
    generator = torch.Generator().manual_seed(2)
    grad = torch.randn(2, 3, N, 8, generator=generator, dtype=torch.float64)
    for wanted in ((0, ), (1, ), (2, ), (0, 2), (0, 1)):
        own = [t.clone().requires_grad_(i in wanted)
               for i, t in enumerate(inputs)]
        out = metric_propagation(*own, EPS)
        got = torch.autograd.grad(out, [own[i] for i in wanted], grad)
        for i, gradient in zip(wanted, got):
            assert error(gradient, matrix[i]) < 1e-10


@pytest.mark.parametrize('name', masks(5, 5))
@pytest.mark.parametrize('form', FORMS)
def test_gradcheck(form, name):
    kwargs = masks(5, 5)[name]
    inputs = [t.requires_grad_() for t in points(2, 3, n=5, m=5, d=2, e=3)]
    assert gradcheck(lambda *x: FORMS[form](*x, **kwargs), inputs,
                     fast_mode=True)


@pytest.mark.parametrize('form', FORMS)
@pytest.mark.parametrize('dtype', TOLERANCE)
@pytest.mark.parametrize('lead', [(), (2, 3)])
def test_sparse_neighbourhood(form, dtype, lead, monkeypatch):
    mask = graph()
    inputs = points(*lead, d=5, e=4, dtype=dtype)
    expected = by_numpy(form, *inputs, mask=mask)
    matrix = gradients(FORMS[form], inputs, mask=mask, dense=True)
    by_kernel = gradients(FORMS[form], inputs, mask=mask.to_dense())
    no_matrix(monkeypatch)
    along_edges = gradients(FORMS[form], inputs, mask=mask)
    assert error(along_edges[0], expected) < TOLERANCE[dtype]
    for got, want, other in zip(along_edges, matrix, by_kernel):
        assert error(got, want) < TOLERANCE[dtype]
        assert error(got, other) < TOLERANCE[dtype]


@pytest.mark.parametrize('form', FORMS)
def test_sparse_between_two_sets_of_points(form):
    pairs = torch.tensor([[0, 0, 1, 2, 2, 2], [4, 1, 0, 3, 1, 2]])
    mask = torch.zeros(3, 5, dtype=torch.bool)
    mask[tuple(pairs)] = True
    mask = mask.to_sparse()
    inputs = points(n=3, m=5, d=2, e=3)
    out = FORMS[form](*inputs, mask=mask)
    assert error(out, by_numpy(form, *inputs, mask=mask)) < 1e-10
    assert gradcheck(lambda *x: FORMS[form](*x, mask=mask),
                     [t.requires_grad_() for t in inputs])


def test_memory_does_not_grow_with_the_square():
    """No tensor of the N x M form's size is made in either form."""
    from torch.utils._python_dispatch import TorchDispatchMode

    n = 1024
    largest = 0

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            for t in torch.utils._pytree.tree_flatten(out)[0]:
                if isinstance(t, torch.Tensor):
                    largest = max(largest, t.untyped_storage().nbytes())
            return out

    a, b, v = points(1, 2, n=n, m=n, dtype=torch.float32)
    keys = torch.arange(n)[None] < n - 9
    for needs in (False, True):
        for kwargs in ({}, dict(mask=keys), dict(is_causal=True),
                       dict(mask=keys, is_causal=True)):
            with Sizes():
                out = metric_propagation(a, b.requires_grad_(needs), v, EPS,
                                         **kwargs)
                if needs:
                    out.sum().backward()
    assert 0 < largest < 2 * n * 16 * 4
    with Sizes():
        metric_propagation(a, b, v, EPS, dense=True)
    assert largest >= 2 * n * n * 4


class TestBadInput:

    @pytest.mark.parametrize('eps', [
        5e-324, 0, 0.0, -1.0, math.nan, math.inf, -math.inf, True, '1', None,
        torch.tensor(1.0)
    ])
    def test_eps(self, eps):
        with pytest.raises(ValueError, match='eps.*positive number, got'):
            metric_propagation(*points(), eps)

    def test_eps_of_numpy(self):
        inputs = points()
        assert torch.equal(metric_propagation(*inputs, np.float32(2)),
                           metric_propagation(*inputs, 2))

    @pytest.mark.parametrize('form', FORMS)
    @pytest.mark.parametrize('shapes,message', [
        (((3, ), (5, 3), (5, 2)), 'are needed, got'),
        (((4, 3), (5, 2), (5, 2)), 'do not fit'),
        (((4, 3), (5, 3), (6, 2)), 'do not fit'),
        (((2, 4, 3), (5, 3), (5, 2)), 'do not fit'),
        (((4, 3), (0, 3), (0, 2)), 'a dimension is 0'),
        (((4, 0), (5, 0), (5, 2)), 'a dimension is 0'),
    ])
    def test_shapes(self, form, shapes, message):
        with pytest.raises(ValueError, match=message):
            FORMS[form](*(torch.ones(s) for s in shapes))

    @pytest.mark.parametrize('form', FORMS)
    @pytest.mark.parametrize('dtypes', [
        (torch.float32, torch.float64, torch.float32),
        (torch.float32, torch.float32, torch.bfloat16),
        (torch.int64, torch.int64, torch.int64)
    ])
    def test_dtypes(self, form, dtypes):
        with pytest.raises(ValueError, match='one floating dtype, got'):
            FORMS[form](*(torch.ones(2, 2, dtype=t) for t in dtypes))
