"""What every backend of the fused tail must give."""

import itertools

import torch

from mmstepnet.precision import accumulation_dtype
from mmstepnet.steps.tail import aten
from mmstepnet.steps.tail.function import Norm, TailSpec

TOLERANCES = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}

KINDS = ('batch', 'running', 'none')
EVERY = *itertools.product(KINDS, KINDS, [True]), ('none', 'none', False)
FEW = ('batch', 'batch', True), ('none', 'none', False)
"""Kinds of the block's norm and of the gate's, and whether to rectify, which
only passes over maps do."""


def tail_arguments(shape, dtype, memory_format, device, norm, gate, relu):
    """What a backend's ``forward`` is called with, of random values."""
    torch.manual_seed(0)
    channels, wide = shape[1], accumulation_dtype(dtype)

    def vector(*size):
        return torch.randn(size or (channels,), dtype=torch.float64).to(
            device, wide
        )

    def make(kind):
        """A norm, its weight and its bias."""
        if kind == 'none':
            zero, one = aten.constants(channels, wide, torch.device(device))
            return Norm(False, 0.0, zero, one), one, zero
        moved = (torch.zeros((), dtype=torch.int64, device=device), 0.1)
        return (
            Norm(
                kind == 'batch',
                1e-5,
                vector(),
                vector().abs() + 0.5,
                *(moved if kind == 'batch' else ()),
            ),
            vector(),
            vector(),
        )

    x, c = (
        torch.randn(shape) + torch.randn(*shape[:2], 1, 1) for _ in range(2)
    )
    x, c = (
        t.to(device, dtype).contiguous(memory_format=memory_format)
        for t in (x, 2 * c + 1)
    )
    (norm, *affine), (gate, *gate_affine) = make(norm), make(gate)
    learned = [*affine, vector(channels, 2), *gate_affine, vector(), vector()]
    return TailSpec(norm, gate, 1.5, relu), x, c, learned


def both_directions(passes, dtype, spec, x, c, learned, grad):
    """Result, gradients and running statistics, of copies in a dtype."""
    spec, x, c, learned, grad = torch.utils._pytree.tree_map_only(
        torch.Tensor,
        lambda t: t.to(dtype if t.is_floating_point() else None, copy=True),
        (spec, x, c, learned, grad),
    )
    out, saved = passes.forward(spec, x, c, learned)
    d_x, d_c, gradients = passes.backward(
        spec, grad, out if spec.relu else None, c, learned, saved
    )
    return [
        out,
        d_x,
        d_c,
        *gradients,
        *(t for norm in spec[:2] for t in norm if isinstance(t, torch.Tensor)),
    ]


def check_equals_aten(passes, device, dtype, memory_format, shape, kinds=FEW):
    """Against ATen's passes in float64, on the same rounded maps.

    Of five images: the derivatives of a BN over three lose digits.
    """
    for norm, gate, relu in kinds:
        spec, x, c, learned = tail_arguments(
            shape, dtype, memory_format, device, norm, gate, relu
        )
        total, *_ = both_directions(
            aten, torch.float64, spec._replace(relu=False), x, c, learned, c
        )
        # No gradient where rounding decides on which side of 0 we are.
        grad = torch.randn_like(c) * (total.abs() > 0.1 * total.abs().mean())
        found = both_directions(passes, None, spec, x, c, learned, grad)
        wanted = both_directions(
            aten, torch.float64, spec, x, c, learned, grad
        )
        for i, (got, exact) in enumerate(zip(found, wanted)):
            exact = exact.double()
            error = (got.double() - exact).norm() / max(exact.norm(), 1e-2)
            assert error < TOLERANCES[dtype], (i, norm, gate, relu)
        assert found[0].dtype == dtype
        for maps in found[:3]:
            assert maps.is_contiguous(memory_format=memory_format)
