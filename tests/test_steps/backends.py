"""What every backend of the fused tail must give."""

import itertools

import torch

from mmstepnet.precision import accumulation_dtype
from mmstepnet.steps.tail import aten
from mmstepnet.steps.tail.formulas import Learned, Running, TailSpec

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

    def running(kind):
        return Running() if kind == 'none' else Running(
            vector(), vector(low=0.5), torch.zeros(
                (), dtype=torch.int64, device=device))
    x, c = (torch.randn(shape, dtype=torch.float64)
            + torch.randn(n, channels, 1, 1, dtype=torch.float64)
            for _ in range(2))
    x, c = (t.to(device, dtype).contiguous(memory_format=memory_format)
            for t in (x, 2 * c + 1))
    affine = (None, None) if norm == 'none' else (vector(), vector())
    rest = (None, None, None) if gate == 'none' else (
        vector(), vector(), vector())
    moves = [0.1 if kind == 'batch' else None for kind in (norm, gate)]
    spec = TailSpec(norm, 1e-5, moves[0], gate, 1e-5, moves[1], 1.5, relu)
    return (spec, x, c, Learned(*affine, vector(channels, 2), *rest,
                                vector()), running(norm), running(gate))


def both_directions(passes, spec, x, c, learned, norm, gate, grad):
    """Result, gradients and running statistics, by name."""
    norm, gate = (Running(*(t if t is None else t.clone() for t in running))
                  for running in (norm, gate))
    out, saved = passes.forward(spec, x, c, learned, norm, gate)
    d_x, d_c, gradients = passes.backward(
        spec, grad, out if spec.relu else None, c, learned, gate, saved, True,
        True)
    return dict(out=out, d_x=d_x, d_c=d_c, **gradients._asdict(),
                **{f'norm_{k}': v for k, v in norm._asdict().items()},
                **{f'gate_{k}': v for k, v in gate._asdict().items()})


KINDS = ('batch', 'running', 'none')
EVERY = tuple(itertools.product(KINDS, KINDS, (True, False)))
FEW = ('batch', 'batch', True), ('none', 'none', False)
"""Kinds of the block's norm and of the gate's, and whether to rectify."""


def check_equals_aten(passes, device, dtype, memory_format, shape,
                      kinds=FEW):
    """Against ATen's passes in float64, on the same rounded maps."""
    for norm, gate, relu in kinds:
        spec, x, c, learned, *running = tail_arguments(
            shape, dtype, memory_format, device, norm, gate, relu)
        exact = [x.double(), c.double(), Learned(*(
            t if t is None else t.double() for t in learned)), *(
            Running(*(t if t is None or not t.is_floating_point()
                      else t.double() for t in r)) for r in running)]
        total, _ = aten.forward(spec._replace(relu=False), *exact[:3], *(
            Running(*(t if t is None else t.clone() for t in r))
            for r in exact[3:]))
        grad = torch.randn(shape, dtype=torch.float64, device=device).to(
            dtype).contiguous(memory_format=memory_format)
        # No gradient where rounding decides on which side of 0 we are.
        grad = grad * (total.abs() > 0.1 * total.abs().mean()).to(grad)
        found = both_directions(passes, spec, x, c, learned, *running, grad)
        wanted = both_directions(aten, spec, *exact, grad.double())
        for name, expected in wanted.items():
            if expected is None:
                assert found[name] is None, name
                continue
            expected = expected.double()
            error = (found[name].double() - expected).norm() / max(
                expected.norm(), 1e-2)
            assert error < TOLERANCES[dtype], (name, norm, gate, relu)
        assert found['out'].dtype == dtype
        for name in ('out', 'd_x', 'd_c'):
            assert found[name].is_contiguous(memory_format=memory_format)
