"""Triton's kernels against ATen's operations.

On a GPU where there is one, else in Triton's interpreter, which has to be
chosen before Triton is imported: a process of its own runs this file again.
"""

import itertools
import os
import subprocess
import sys

import pytest
import torch

from mmstepnet.ops import aten

pytest.importorskip('triton', reason='needs triton')

INTERPRETED = os.environ.get('TRITON_INTERPRET') == '1'
FORMATS = (torch.contiguous_format, torch.channels_last)
TOLERANCES = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.float16: 2e-3,
    torch.bfloat16: 1e-2,
}


@pytest.mark.skipif(INTERPRETED, reason='this is the interpreter')
def test_in_the_interpreter():
    result = subprocess.run(
        [sys.executable, '-m', 'pytest', '-p', 'no:cacheprovider', __file__],
        env={**os.environ, 'TRITON_INTERPRET': '1'},
        capture_output=True,
        text=True)
    assert result.returncode == 0, result.stdout[-4000:]
    assert ' passed' in result.stdout


@pytest.fixture
def kernels(monkeypatch):
    """The kernels' module and the device it runs on."""
    if not (INTERPRETED or torch.cuda.is_available()):
        pytest.skip('no GPU; test_in_the_interpreter runs it')
    from mmstepnet.ops import triton_kernels
    if INTERPRETED:
        # Several tiles a map, several splits a reduction, in a few elements.
        monkeypatch.setattr(triton_kernels, 'TILE', 16)
        monkeypatch.setattr(triton_kernels, 'PROGRAMS', 16)
    return triton_kernels, 'cpu' if INTERPRETED else 'cuda'


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
            device, aten.accumulation_dtype(dtype)) for _ in range(5)
    ]
    return maps, rows


@pytest.mark.parametrize('memory_format', FORMATS)
@pytest.mark.parametrize('dtype,shape', [
    *((dtype, (2, 3, 5, 4)) for dtype in TOLERANCES),
    (torch.float32, (2, 5, 1, 1)),
])
def test_equal_aten(kernels, dtype, memory_format, shape):
    triton, device = kernels
    (x, c, g), (centre, scale, shift, slope, offset) = data(
        shape, dtype, memory_format, device)
    pairs = [(triton.mean(c), aten.mean(c)),
             *zip(triton.moments(c), aten.moments(c))]
    for args in ((centre, scale, shift, True), (None, scale, None, False)):
        pairs.append((triton.step(x, c, *args), aten.step(x, c, *args)))
    out = aten.step(x, c, centre, scale, shift, True)
    for args in ((out, c, centre), (None, c, None)):
        pairs += zip(triton.reduce(g, *args), aten.reduce(g, *args))
    for args in ((centre, scale, slope, offset, shift, True, True, True),
                 (centre, scale, slope, None, None, False, True, False),
                 (None, scale, None, offset, shift, True, True, False),
                 (None, scale, None, None, shift, True, False, False)):
        pairs += zip(triton.gradients(g.clone(), c, *args),
                     aten.gradients(g.clone(), c, *args))
    for index, (got, expected) in enumerate(pairs):
        assert error(got, expected) < TOLERANCES[dtype], index
    for maps in (triton.step(x, c, None, scale, None, False),
                 triton.reduce(g, out, c, centre)[0]):
        assert maps.is_contiguous(memory_format=memory_format)


def test_large_means(kernels):
    """Where E[c^2] - E[c]^2 is off by a factor, in float32."""
    triton, device = kernels
    for memory_format in FORMATS:
        c = torch.randn(1, 2, 6, 6, dtype=torch.float64) + 1e4
        c = c.to(device, torch.float32).contiguous(
            memory_format=memory_format)
        _, var = triton.moments(c)
        exact = c.double().var((2, 3), correction=0)
        torch.testing.assert_close(var.double(), exact, rtol=1e-3, atol=0)


def test_whole_step(kernels, monkeypatch):
    """The autograd functions over the kernels, against the reference path."""
    from mmstepnet import ops
    from mmstepnet.models import ResidualStep
    from mmstepnet.models.attentions import StepNet
    from mmstepnet.ops import residual
    triton, device = kernels
    torch.manual_seed(0)
    step = ResidualStep(StepNet(3), torch.nn.ReLU()).double().to(device)
    norm = torch.nn.BatchNorm2d(3).double().to(device)
    for p in itertools.chain(step.parameters(), norm.parameters()):
        torch.nn.init.normal_(p)
    results = []
    for fused in (True, False):
        monkeypatch.setattr(residual, 'backend', lambda maps: triton)
        (x, c, g), _ = data((2, 3, 4, 3), torch.float64, FORMATS[1], device)
        x.requires_grad_()
        c.requires_grad_()
        with ops.fused(fused):
            out = step(x, c, norm)
        wanted = [x, c, *step.parameters(), *norm.parameters()]
        results.append((out, *torch.autograd.grad(out, wanted, g)))
    for got, expected in zip(*results):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)
