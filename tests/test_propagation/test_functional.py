"""Propagation against its formula, in every form."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mmstepnet.propagation import metric_propagation
from tests.test_propagation.references import (
    EPS,
    FORMS,
    HALF,
    TOLERANCE,
    by_numpy,
    error,
    gradients,
    masks,
    no_matrix,
    points,
)

SHAPES = {
    'square': dict(lead=(2, 3)),
    'far from the origin': dict(lead=(2, 3), offset=1e3),
    'more sources': dict(lead=(2, 3), n=7, m=19, d=5, e=3),
    'fewer sources': dict(lead=(2, 3), n=19, m=7, d=3, e=11),
    'one receiver': dict(lead=(2, 3), n=1, m=19),
    'one source': dict(lead=(2, 3), n=19, m=1),
    'one number each': dict(lead=(2, 3), n=5, m=5, d=1, e=1),
    'no receiver': dict(lead=(2, 3), n=0, m=5),
    'no group': dict(lead=(0, ), n=5, m=7),
    'alone': dict(lead=(), n=5, m=7),
    'groups': dict(lead=(3, ), n=5, m=7),
    'many groups': dict(lead=(2, 1, 2, 3), n=5, m=7),
}
CASES = [(shape, dtype) for shape in SHAPES
         for dtype in (torch.float64, torch.float32)]
CASES += [pytest.param('square', *getattr(dtype, 'values', (dtype, )),
                       marks=getattr(dtype, 'marks', ())) for dtype in HALF]


@pytest.mark.parametrize('form', FORMS)
@pytest.mark.parametrize('shape, dtype', CASES)
def test_every_form_is_the_formula(form, shape, dtype, monkeypatch):
    """Values by numpy, gradients by the N x M form in float64."""
    settings = dict(SHAPES[shape])
    lead, function = settings.pop('lead'), FORMS[form]
    if form == 'dot product':
        settings.pop('offset', None)
    inputs = points(*lead, dtype=dtype, **settings)
    tolerance = TOLERANCE[dtype]
    for name, kwargs in masks(inputs[0].shape[-2], inputs[1].shape[-2],
                              lead).items():
        expected = by_numpy(form, *inputs, **kwargs)
        matrix = gradients(function, [t.double() for t in inputs],
                           dense=True, **kwargs)
        assert error(matrix[0], expected) < 1e-10, name
        assert error(function(*inputs, dense=True, **kwargs),
                     expected) < tolerance, name
        with monkeypatch.context() as patch:
            no_matrix(patch)
            for got, want in zip(gradients(function, inputs, **kwargs),
                                 matrix):
                assert got.dtype == dtype
                assert error(got, want) < tolerance, name
            with torch.no_grad():
                out = function(*inputs, **kwargs)
        assert error(out, expected) < tolerance, name


def test_memory_does_not_grow_with_the_square():
    """No tensor of the N x M form's size is made in either form."""
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
