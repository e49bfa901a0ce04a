"""Training in bfloat16 on CPUs with and without instructions for it."""

import copy
from contextlib import nullcontext

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim import SGD

from projects import autocast
from projects.autocast import AutocastOptimWrapper, Float32Products


def passes(layer, x, products):
    """Output and gradients of a layer under autocast."""
    layer, x = copy.deepcopy(layer), x.clone().requires_grad_()
    with torch.autocast('cpu', torch.bfloat16), products:
        out = layer(x)
    out.float().square().sum().backward()
    return [out, x.grad, *(p.grad for p in layer.parameters())]


@pytest.mark.parametrize('make, shape', [
    (lambda: nn.Conv2d(6, 4, 3, stride=2, padding=1, bias=False),
     (2, 6, 9, 9)),
    (lambda: nn.Conv2d(6, 6, 3, groups=3), (2, 6, 5, 5)),
    (lambda: nn.Linear(6, 5), (4, 6)),
])
def test_products_are_those_of_pytorch_but_for_the_order_of_sums(make, shape):
    layer, x = make(), torch.randn(shape)
    ours = passes(layer, x, Float32Products())
    host = passes(layer, x, nullcontext())
    # Sums of the terms' absolute values: what their rounding is relative to.
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.abs_()
    sums = passes(layer, x.abs(), Float32Products())
    for value, expected, terms in zip(ours, host, sums, strict=True):
        assert value.dtype == expected.dtype
        # Two steps of bfloat16: of an output, and of a gradient made from it.
        assert ((value - expected).abs() <= 2 * 2**-7 * terms).all()


def test_a_sum_is_rounded_once():
    """Against float64, which holds these sums exactly."""
    layer, x = nn.Linear(64, 8), torch.randn(16, 64)
    with (torch.no_grad(), torch.autocast('cpu', torch.bfloat16),
          Float32Products()):
        ours = layer(x)
        by_name = F.linear(input=x, weight=layer.weight, bias=layer.bias)
    a, w, b = (v.detach().bfloat16().double()
               for v in (x, layer.weight, layer.bias))
    exact = a @ w.T + b
    step = 2.0**(torch.frexp(exact)[1] - 8)
    assert torch.equal(ours, by_name)
    assert ours.dtype == torch.bfloat16
    assert ((ours.double() - exact).abs() <= 0.501 * step).all()


@pytest.mark.parametrize('dtype, enabled', [
    (torch.float64, True), (torch.float32, False)])
def test_what_autocast_leaves_alone_stays(dtype, enabled):
    layer, x = nn.Linear(6, 5).to(dtype), torch.randn(4, 6, dtype=dtype)
    with (torch.autocast('cpu', torch.bfloat16, enabled=enabled),
          Float32Products()):
        torch.testing.assert_close(layer(x), x @ layer.weight.T + layer.bias)


@pytest.mark.parametrize('supported', [False, True])
def test_wrapper_asks_what_the_cpu_has(monkeypatch, supported):
    made = []
    monkeypatch.setattr(autocast, 'multiplies_bfloat16', lambda: supported)
    monkeypatch.setattr(autocast, 'Float32Products',
                        lambda: made.append(1) or nullcontext())
    layer, x = nn.Linear(6, 5), torch.randn(4, 6)
    wrapper = AutocastOptimWrapper(optimizer=SGD(layer.parameters(), lr=0.1))
    with wrapper.optim_context(layer):
        assert layer(x).dtype == torch.bfloat16
    assert bool(made) is not supported
