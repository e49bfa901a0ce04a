"""Sources that nobody sees, receivers that see none, and none of either."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from mmstepnet.propagation import (
    MetricAttention,
    dot_product_propagation,
    metric_propagation,
    pseudo_metric_propagation,
)
from mmstepnet.propagation.functional import squared_distance

from .references import FORMS, by_numpy, error, points


def definition(a, b, v, dense, **kwargs):
    return pseudo_metric_propagation(squared_distance, a, b, v, **kwargs)


WAYS = [*FORMS.values(), definition]
both = pytest.mark.parametrize('dense', [False, True])
ways = pytest.mark.parametrize('way', WAYS, ids=[*FORMS, 'definition'])


@both
@ways
@pytest.mark.parametrize('value', [math.nan, math.inf, -math.inf, 1e30])
@pytest.mark.parametrize('of', [1, 2], ids=['sources', 'values'])
@pytest.mark.parametrize('causal', [False, True])
def test_what_nobody_sees_may_be_anything(way, dense, value, of, causal):
    given = points(2, n=20, m=20, dtype=torch.float32)
    keys = (torch.arange(20) < 15).expand(2, 1, 20)
    some = keys.repeat(1, 20, 1)
    some[0, 3:, 2] = False
    for mask in (keys, some):
        kwargs = dict(mask=mask, dense=dense, is_causal=causal)
        clean = [t.clone().requires_grad_() for t in given]
        expected = way(*clean, **kwargs)
        spoilt = [t.clone() for t in given]
        spoilt[of][:, 15:] = value
        spoilt = [t.requires_grad_() for t in spoilt]
        out = way(*spoilt, **kwargs)
        torch.testing.assert_close(out, expected, atol=1e-5, rtol=0)
        with torch.no_grad():
            torch.testing.assert_close(
                way(*spoilt, **kwargs), expected, atol=1e-5, rtol=0)
        weights = torch.randn(expected.shape)
        for one, other in zip(
                torch.autograd.grad((out * weights).sum(), spoilt),
                torch.autograd.grad((expected * weights).sum(), clean)):
            torch.testing.assert_close(one, other, atol=1e-4, rtol=0)


@both
@pytest.mark.parametrize('form', FORMS)
@pytest.mark.parametrize('n, m', [(20, 33), (33, 20), (1, 5)])
def test_causal_counts_from_the_first(form, dense, n, m):
    a, b, v = points(2, 3, n=n, m=m)
    out = FORMS[form](a, b, v, is_causal=True, dense=dense)
    assert error(out, by_numpy(form, a, b, v, is_causal=True)) < 1e-10
    mask = torch.rand(2, 1, n, m, generator=torch.Generator().manual_seed(0))
    mask = (mask > 0.5) | (torch.arange(m) == 0)
    out = FORMS[form](a, b, v, mask=mask, is_causal=True, dense=dense)
    assert error(out, by_numpy(form, a, b, v, mask, True)) < 1e-10
    theirs = F.scaled_dot_product_attention(a, b, v, is_causal=True)
    ours = dot_product_propagation(
        a, b, v, a.shape[-1]**0.5, is_causal=True, dense=dense)
    assert error(ours, theirs) < 1e-10


@both
@pytest.mark.parametrize('form', FORMS)
@pytest.mark.parametrize('n, m', [(33, 33), (20, 33), (33, 20), (5, 5)])
def test_padding_on_the_left(form, dense, n, m):
    """Points that nobody informs get 0; the others what they would alone."""
    a, b, v = (t.requires_grad_() for t in points(2, n=n, m=m))
    mask = torch.arange(m) >= torch.tensor([[[0]], [[3]]])
    out = FORMS[form](a, b, v, mask=mask, is_causal=True, dense=dense)
    assert error(out, by_numpy(form, a, b, v, mask, True)) < 1e-10
    assert (out[1, :3] == 0).all() and (out[0] != 0).all()
    for grad in torch.autograd.grad(out.square().sum(), (a, b, v)):
        assert grad.isfinite().all() and (grad[1, :3] == 0).all()
    if n == m:  # the sequence without its padding
        alone = FORMS[form](*(t[1, 3:] for t in (a, b, v)), is_causal=True)
        assert error(out[1, 3:], alone) < 1e-10


@both
@ways
def test_no_receivers(way, dense):
    a, b, v = (t.requires_grad_() for t in points(2, n=0, m=5, e=4))
    for mask in (None, torch.ones(2, 1, 5, dtype=torch.bool),
                 torch.ones(2, 0, 5, dtype=torch.bool)):
        out = way(a, b, v, mask=mask, dense=dense)
        assert out.shape == (2, 0, 4)
        assert all((g == 0).all()
                   for g in torch.autograd.grad(out.sum(), (a, b, v)))


@both
@ways
def test_tensors_without_values(way, dense):
    given = points(2, n=6, m=5, e=4, dtype=torch.float32)
    mask = torch.ones(2, 1, 5, dtype=torch.bool)
    for kwargs in (dict(), dict(mask=mask), dict(mask=mask, is_causal=True)):
        meta = {k: v.to('meta') if k == 'mask' else v
                for k, v in kwargs.items()}
        out = way(*(t.to('meta') for t in given), dense=dense, **meta)
        assert out.is_meta and out.shape == (2, 6, 4)
        with FakeTensorMode() as mode:
            fake = {k: mode.from_tensor(v) if k == 'mask' else v
                    for k, v in kwargs.items()}
            out = way(*map(mode.from_tensor, given), dense=dense, **fake)
        assert out.shape == (2, 6, 4) and out.device.type == 'cpu'


@pytest.mark.parametrize('form', FORMS)
def test_second_derivatives_of_the_dense_form(form):
    given = [t.requires_grad_() for t in points(n=3, m=4, d=2, e=2)]
    assert torch.autograd.gradgradcheck(
        lambda *t: FORMS[form](*t, dense=True), given)


@both
def test_nested_tensors(dense):
    nested = torch.nested.nested_tensor(
        [torch.randn(n, 8) for n in (3, 5)], layout=torch.jagged)
    for function in (metric_propagation, dot_product_propagation):
        with pytest.raises(TypeError, match='pad them'):
            function(nested, nested, nested, dense=dense)
    block = MetricAttention(8, 2)
    with pytest.raises(TypeError, match='pad them'):
        block(nested, dense=dense)
    # The way out that the message shows.
    lengths = torch.tensor([3, 5])
    x = torch.nested.to_padded_tensor(nested, 0.0)
    mask = (torch.arange(x.shape[1]) < lengths[:, None])[:, None]
    out = block(x, mask=mask, dense=dense)
    for i, alone in enumerate(nested.unbind()):
        torch.testing.assert_close(out[i, :len(alone)], block(alone))


def test_shapes_of_masks_are_told_as_they_were_given():
    block = MetricAttention(8, 2)
    with pytest.raises(ValueError, match=r'to \(2, 5, 5\), .* \(2, 4, 5\)'):
        block(torch.randn(2, 5, 8), mask=torch.ones(2, 4, 5).bool())
