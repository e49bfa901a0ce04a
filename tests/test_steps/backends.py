"""What every backend of the residual step's passes must give."""

import itertools
import math

import torch

from mmstepnet import steps
from mmstepnet.attentions import StepNet
from mmstepnet.precision import accumulation_dtype
from mmstepnet.steps import ResidualStep, tail
from mmstepnet.steps.kernels import plain
from mmstepnet.steps.vectors import join

FORMATS = (torch.contiguous_format, torch.channels_last)
TOLERANCES = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.float16: 2e-3,
    torch.bfloat16: 1e-2,
}


def error(got, expected):
    """Relative error of a tensor by norm; both may be None."""
    if expected is None:
        assert got is None
        return 0.0
    assert got.dtype == expected.dtype and got.shape == expected.shape
    difference = (got.double() - expected.double()).norm()
    return (difference / expected.double().norm().clamp(min=1e-9)).item()


def data(shape, dtype, memory_format, device):
    torch.manual_seed(0)
    x, c, g = (torch.randn(shape, dtype=torch.float64) for _ in range(3))
    maps = [
        t.to(device, dtype).contiguous(memory_format=memory_format)
        for t in (x, c + 50, g)
    ]
    rows = [
        torch.randn(shape[:2], dtype=torch.float64).to(
            device, accumulation_dtype(dtype)) for _ in range(5)
    ]
    return maps, rows


def beside_plain(backend, device, dtype, memory_format, shape):
    """Call every function in every way; pairs of a backend's and plain."""
    (x, c, g), (rows, scale, shift, slope, offset) = data(
        shape, dtype, memory_format, device)
    centre = rows[0]
    pairs = []

    def both(name, *args):
        """Whose sums, of however many spans, are joined to means."""
        found = []
        for passes in (backend, plain):
            sums = getattr(passes, name)(*args)
            pixels, span = passes.spans(c)
            if name == 'moments':
                sums = join((None, *sums), pixels, span)[1:]
            elif name == 'reduce':
                sums = [t.sum(0) for t in sums]
            else:
                sums = sums.sum(0),
            found.append(sums)
        pairs.extend(zip(*found))
    both('total', c)
    both('moments', c)
    for args in ((centre, scale, shift, True), (None, scale, None, False)):
        pairs.append((backend.step(x, c, *args), plain.step(x, c, *args)))
    out = plain.step(x, c, centre, scale, shift, True)
    for args in ((out, c, centre), (None, c, None)):
        both('reduce', g, *args)
    for args in ((out, c, rows, scale, slope, offset, shift, True, True),
                 (out, c, rows, scale, slope, None, None, True, True),
                 (None, c, rows, scale, slope, None, None, False, True),
                 (None, c, None, scale, None, offset, shift, True, True),
                 (out, c, None, scale, None, None, shift, True, False)):
        pairs += zip(backend.gradients(g, *args), plain.gradients(g, *args))
    return pairs


def check_equal_plain(backend, device, dtype, memory_format, shape):
    pairs = beside_plain(backend, device, dtype, memory_format, shape)
    for index, (got, expected) in enumerate(pairs):
        assert error(got, expected) < TOLERANCES[dtype], index
        if got is not None and got.ndim == 4:
            assert got.is_contiguous(memory_format=memory_format), index


def check_large_means(backend, device):
    """Where E[c^2] - E[c]^2 is off by a factor, in float32."""
    for memory_format in FORMATS:
        c = torch.randn(1, 2, 6, 6, dtype=torch.float64) + 1e4
        c = c.to(device, torch.float32).contiguous(
            memory_format=memory_format)
        *_, var = join((None, *backend.moments(c)), *backend.spans(c))
        exact = c.double().var((2, 3), correction=0)
        torch.testing.assert_close(var.double(), exact, rtol=1e-3, atol=0)


def check_whole_step(backend, device, monkeypatch):
    """The autograd functions over a backend, against the reference path."""
    monkeypatch.setattr(tail, 'backend', lambda maps: backend)
    torch.manual_seed(0)
    for training, relu in itertools.product((True, False), repeat=2):
        step = ResidualStep(
            StepNet(3), torch.nn.ReLU() if relu else None).double().to(device)
        norm = torch.nn.BatchNorm2d(3).double().to(device).train(training)
        for p in itertools.chain(step.parameters(), norm.parameters()):
            torch.nn.init.normal_(p)
        results = []
        for fused in (True, False):
            (x, c, g), _ = data(
                (2, 3, 4, 3), torch.float64, FORMATS[1], device)
            x.requires_grad_()
            c.requires_grad_()
            with steps.fused(fused):
                out = step(x, c, norm)
            wanted = [x, c, *step.parameters(), *norm.parameters()]
            results.append((out, *torch.autograd.grad(out, wanted, g)))
        for got, expected in zip(*results):
            scale = max(expected.abs().max().item(), math.ulp(1.0))
            torch.testing.assert_close(
                got, expected, rtol=1e-9, atol=1e-9 * scale)
