"""What every backend of the fused tail must give."""

import itertools

import torch

from mmstepnet.precision import accumulation_dtype
from mmstepnet.steps.tail import aten
from mmstepnet.steps.tail.formulas import (
    Norm,
    Parameters,
    TailSpec,
    constants,
)

TOLERANCES = {
    torch.float32: 2e-5,
    torch.float16: 4e-3,
    torch.bfloat16: 3e-2,
}


def tail_arguments(shape, dtype, memory_format, device, norm, gate, relu):
    """What a backend's ``forward`` is called with, of random values."""
    torch.manual_seed(0)
    n, channels = shape[:2]
    wide = accumulation_dtype(dtype)

    def vector(*size, low=None):
        values = torch.randn(size or (channels, ), dtype=torch.float64)
        if low is not None:
            values = values.abs() + low
        return values.to(device, wide)

    def norm_of(kind):
        if kind == 'none':
            return Norm(False, 0., *constants(channels, wide, x.device))
        moved = (torch.zeros((), dtype=torch.int64, device=device), 0.1)
        return Norm(kind == 'batch', 1e-5, vector(), vector(low=0.5), *(
            moved if kind == 'batch' else ()))

    def affine(kind):
        if kind == 'none':
            return constants(channels, wide, x.device)[::-1]
        return vector(), vector()
    x, c = (torch.randn(shape, dtype=torch.float64)
            + torch.randn(n, channels, 1, 1, dtype=torch.float64)
            for _ in range(2))
    x, c = (t.to(device, dtype).contiguous(memory_format=memory_format)
            for t in (x, 2 * c + 1))
    learned = Parameters(*affine(norm), vector(channels, 2), *affine(gate),
                         affine(gate)[0], vector())
    return TailSpec(norm_of(norm), norm_of(gate), 1.5, relu), x, c, learned


def copied(norm, dtype=None):
    """A norm with running statistics of its own, or of another dtype."""
    def copy(t):
        if not isinstance(t, torch.Tensor):
            return t
        return t.to(dtype if t.is_floating_point() else None, copy=True)
    return Norm(*map(copy, norm))


def both_directions(passes, spec, x, c, learned, grad):
    """Result, gradients and running statistics, by name."""
    spec = TailSpec(copied(spec.norm), copied(spec.gate), *spec[2:])
    out, saved = passes.forward(spec, x, c, learned)
    d_x, d_c, gradients = passes.backward(
        spec, grad, out if spec.relu else None, c, learned, saved)
    return dict(out=out, d_x=d_x, d_c=d_c, **gradients._asdict(), **{
        f'{name}_{key}': t for name in ('norm', 'gate')
        for key, t in getattr(spec, name)._asdict().items()
        if isinstance(t, torch.Tensor)})


KINDS = ('batch', 'running', 'none')
EVERY = *itertools.product(KINDS, KINDS, [True]), ('none', 'none', False)
FEW = ('batch', 'batch', True), ('none', 'none', False)
"""Kinds of the block's norm and of the gate's, and whether to rectify, which
only passes over maps do."""


def check_equals_aten(passes, device, dtype, memory_format, shape,
                      kinds=FEW):
    """Against ATen's passes in float64, on the same rounded maps."""
    for norm, gate, relu in kinds:
        spec, x, c, learned = tail_arguments(
            shape, dtype, memory_format, device, norm, gate, relu)
        exact = (TailSpec(copied(spec.norm, torch.float64),
                          copied(spec.gate, torch.float64), *spec[2:]),
                 x.double(), c.double(),
                 Parameters(*(t.double() for t in learned)))
        total = both_directions(
            aten, exact[0]._replace(relu=False), *exact[1:], exact[1])['out']
        grad = torch.randn(shape, dtype=torch.float64, device=device).to(
            dtype).contiguous(memory_format=memory_format)
        # No gradient where rounding decides on which side of 0 we are.
        grad = grad * (total.abs() > 0.1 * total.abs().mean()).to(grad)
        found = both_directions(passes, spec, x, c, learned, grad)
        wanted = both_directions(aten, *exact, grad.double())
        for name, expected in wanted.items():
            expected = expected.double()
            error = (found[name].double() - expected).norm() / max(
                expected.norm(), 1e-2)
            assert error < TOLERANCES[dtype], (name, norm, gate, relu)
        assert found['out'].dtype == dtype
        for name in ('out', 'd_x', 'd_c'):
            assert found[name].is_contiguous(memory_format=memory_format)
