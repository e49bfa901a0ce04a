"""Sources that nobody sees, receivers that see none, and none of either."""

import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from mmstepnet.propagation import pseudo_metric_propagation
from mmstepnet.propagation.functional import squared_distance

from .references import FORMS, points


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
@ways
def test_tensors_without_values(way, dense):
    mask = torch.ones(2, 1, 5, dtype=torch.bool)
    for kwargs in (dict(), dict(mask=mask), dict(mask=mask, is_causal=True)):
        with FakeTensorMode() as mode:
            a, b, v, seen = map(mode.from_tensor, (
                *points(2, n=6, m=5, e=4, dtype=torch.float32), mask))
            for device in ('cpu', 'meta'):
                given = {**kwargs, 'mask': seen.to(device)} if kwargs else {}
                out = way(*(t.to(device) for t in (a, b, v)), dense=dense,
                          **given)
                assert out.shape == (2, 6, 4) and out.device.type == device


@pytest.mark.parametrize('form', FORMS)
def test_second_derivatives_of_the_dense_form(form):
    given = [t.requires_grad_() for t in points(n=3, m=4, d=2, e=2)]
    assert torch.autograd.gradgradcheck(
        lambda *t: FORMS[form](*t, dense=True), given)
