"""What every backend of the steps by hand must give."""

import itertools

import torch

from mmstepnet.precision import accumulation_dtype
from mmstepnet.steps.tail import aten, scaled, scaled_aten
from mmstepnet.steps.tail.parts import Norm, ScaledSpec, TailSpec, find_layout

TOLERANCES = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}

KINDS = ('batch', 'running', 'none')
EVERY = *itertools.product(KINDS, KINDS, [True]), ('none', 'none', False)
FEW = ('batch', 'batch', True), ('none', 'none', False)
"""Kinds of the block's norm and of the gate's, and whether to rectify, which
only passes over maps do."""


def vector(like, *size):
    """Random values, (C,) by default."""
    return torch.randn(size or like.shape, dtype=torch.float64).to(like)


def make_norm(kind, like):
    """A norm of a kind, its weight and its bias."""
    if kind == 'none':
        zero, one = aten.constants(len(like), like.dtype, like.device)
        return Norm(False, 0.0, zero, one), one, zero
    count = torch.zeros((), dtype=torch.int64, device=like.device)
    return (
        Norm(
            kind == 'batch',
            1e-5,
            vector(like),
            vector(like).abs() + 0.5,
            *((count, 0.1) if kind == 'batch' else ()),
        ),
        vector(like),
        vector(like),
    )


def make_gate(kind, like):
    """The norm of a gate, and what the gate has learned."""
    norm, *affine = make_norm(kind, like)
    pair = vector(like, len(like), 2)
    return norm, pair, *affine, vector(like), vector(like)


def tail_arguments(shape, dtype, memory_format, device, norm, gate, relu):
    """What a backend's ``forward`` is called with, of random values."""
    torch.manual_seed(0)
    channels, wide = shape[1], accumulation_dtype(dtype)
    like = torch.empty(channels, dtype=wide, device=device)
    x, c = (
        torch.randn(shape) + torch.randn(*shape[:2], 1, 1) for _ in range(2)
    )
    x, c = (
        t.to(device, dtype).contiguous(memory_format=memory_format)
        for t in (x, 2 * c + 1)
    )
    norm, *affine = make_norm(norm, like)
    gate, *learned = make_gate(gate, like)
    learned = [*affine, *learned]
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


def scaled_arguments(arrangement, dtype, x_dtype, device, gate):
    """The same of a step at a branch's end, and a gradient of its result."""
    axes = arrangement.batch, arrangement.channels
    x = arrangement.tensor(0, x_dtype, arrangement.x_order).to(device)
    f, grad = (
        arrangement.tensor(seed, dtype, order).to(device)
        for seed, order in (
            (1, arrangement.order),
            (2, arrangement.g_order or arrangement.order),
        )
    )
    norm, *learned = make_gate(
        gate, torch.empty(f.shape[axes[1]], device=device)
    )
    layout, x_layout = (
        find_layout(t.shape, t.stride(), *axes) for t in (f, x)
    )
    spec = ScaledSpec(norm, 1.5, layout, x_layout, x.dtype)
    return spec, x, f, learned, grad


def scaled_both_directions(passes, spec, x, f, learned, grad):
    """Result, gradients and running statistics, of copies."""
    spec, learned = torch.utils._pytree.tree_map_only(
        torch.Tensor, torch.clone, (spec, learned)
    )
    out, saved = passes.forward(spec, x, f, learned)
    axes = spec.layout.batch, spec.layout.channel
    layout = find_layout(grad.shape, grad.stride(), *axes)
    d_x, d_f, gradients = passes.backward(
        spec, layout, grad, f, learned, saved
    )
    statistics = [t for t in spec.gate if isinstance(t, torch.Tensor)]
    return [out, d_x, d_f, *gradients, *statistics]


def scaled_by_formula(spec, x, f, learned, grad):
    """The same in float64, by the formula and its derivatives.

    In eval mode, or of statistics that nobody updates: these are compared
    with ATen's.
    """
    x, f, grad = (t.double() for t in (x, f, grad))
    learned = [t.double() for t in learned]
    inputs = [t.requires_grad_() for t in (x, f, *learned)]
    with torch.enable_grad():
        out, _ = scaled.evaluate(spec, spec.x_layout.mean(x), f, *learned)
    d_x, *others = torch.autograd.grad(out, inputs, grad)
    axes = range(x.dim())
    places = [
        i for i in axes if i not in (spec.layout.batch, spec.layout.channel)
    ]
    for axis in places:  # it is the same at each place
        d_x = d_x.select(axis, 0).unsqueeze(axis)
    return [out.detach(), d_x.reshape(spec.layout.maps(x).shape[:2]), *others]


def check_scaled(passes, device, arrangement, dtype, x_dtype, gates):
    """Against the formula in float64, on the same rounded maps.

    Running statistics are compared with those of ATen's passes.
    """
    for gate in gates:
        given = scaled_arguments(arrangement, dtype, x_dtype, device, gate)
        found = scaled_both_directions(passes, *given)
        wanted = scaled_by_formula(*given)
        moved = scaled_both_directions(scaled_aten, *given)[len(wanted) :]
        limits = [TOLERANCES[dtype]] + [TOLERANCES[x_dtype]]
        limits += [TOLERANCES[dtype]] + [TOLERANCES[torch.float32]] * 99
        for i, (got, exact) in enumerate(zip(found, [*wanted, *moved])):
            error = (got.double() - exact.double()).norm()
            error /= max(exact.double().norm(), 1e-2)
            assert error < limits[i], (i, gate, float(error))
        assert len(found) == len(wanted) + len(moved)
        assert found[0].dtype == found[2].dtype == dtype
        assert found[1].dtype == x_dtype
        assert found[0].stride() == given[2].stride()
        assert found[2].stride() == given[-1].stride()
