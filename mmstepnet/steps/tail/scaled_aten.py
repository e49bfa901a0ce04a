"""The passes over the maps of a step at a branch's end, by PyTorch's own.

As :mod:`.aten` is for tails. What costs on a CPU are fresh maps: there is one
a direction, the result and the gradient of f.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mmstepnet.precision import accumulation_dtype

from .aten import (
    Chosen,
    affine,
    choose,
    choose_gradients,
    constants,
    small_norms,
    small_tensors,
    sums,
    widened,
)
from .parts import IMAGES_INSIDE, GateWeights, Layout, ScaledSpec, find_layout


def forward(
    spec: ScaledSpec, x: Tensor, f: Tensor, learned: Sequence[Tensor]
) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """Scale a branch; running statistics are updated.

    Args:
        spec (ScaledSpec): What is done.
        x (Tensor): State, of any number of axes.
        f (Tensor): Branch, of the same shape.
        learned (Sequence): The :class:`GateWeights`.

    Returns:
        tuple: The result, as f lies in memory; and what :func:`backward`
        needs, the means of x at first, (N, C).
    """
    wide = accumulation_dtype(f.dtype)
    weights = GateWeights(*widened(learned, wide))
    x_maps = spec.x_layout.maps(x)
    maps = spec.layout.maps(f)
    x_mean = x_maps.mean((2, 3), dtype=wide)
    f_mean = maps.mean((2, 3), dtype=wide)
    chosen = choose(spec.gate, spec.k, weights, x_mean, f_mean)
    out = torch.empty_like(f)
    if f.dtype == wide:
        torch.mul(f, chosen.step.view(spec.layout.spread), out=out)
    else:
        zero, _ = constants(spec.layout.channels, wide, f.device)
        _write(spec.layout, f, chosen.step, zero, out)
    return out, (x_mean, *chosen)


def backward(
    spec: ScaledSpec,
    layout: Layout,
    grad: Tensor,
    f: Tensor,
    learned: Sequence[Tensor],
    saved: Sequence[Tensor],
) -> tuple[Tensor, Tensor, Sequence[Tensor]]:
    """The derivatives of :func:`forward`.

    Args:
        spec (ScaledSpec): What was done.
        layout (Layout): Of the gradient; df gets the same.
        grad (Tensor): Gradient of the result.
        f (Tensor): Branch.
        learned (Sequence): The :class:`GateWeights`.
        saved (Sequence): What the forward returned.

    Returns:
        tuple: dx of each place, (N, C); df; and the gradients of what is
        learned.
    """
    chosen = Chosen(*saved[1:])
    weights = GateWeights(*widened(learned, chosen.step.dtype))
    d_step = _sums_of_products(layout, grad, spec.layout, f)
    d_z, d_learned = choose_gradients(
        spec.gate, spec.k, weights, chosen, d_step
    )
    d_z = d_z / layout.places
    d_f = torch.empty_like(grad)
    offset = d_z * weights.pair[:, 1]
    _write(layout, grad, chosen.step, offset, d_f)
    d_x = d_z * weights.pair.sum(1)
    return d_x.to(spec.x_dtype), d_f, d_learned


def _sums_of_products(
    layout: Layout, grad: Tensor, f_layout: Layout, f: Tensor
) -> Tensor:
    """Σ g f over the places, (N, C)."""
    wide = accumulation_dtype(f.dtype)
    g = layout.maps(grad)
    maps = f_layout.maps(f)
    if f.dtype == wide:
        return torch.linalg.vecdot(g, maps, dim=2)[..., 0]
    if layout == f_layout and layout.order != IMAGES_INSIDE:
        # Their products would be rounded: they are formed in float32.
        zero, _ = constants(layout.channels, wide, f.device)
        _, products = sums(g, maps, zero)
        return products
    return (g.to(wide) * maps).sum((2, 3))


def _write(
    layout: Layout, state: Tensor, scale: Tensor, shift: Tensor, out: Tensor
) -> None:
    """Write ``state * scale + shift`` of such a layout, rounded once."""
    maps = layout.maps(state)
    result = layout.maps(out)
    if layout.order == IMAGES_INSIDE and state.dtype != scale.dtype:
        wide = affine(maps.to(scale.dtype), scale, shift)
        result.copy_(wide)
    else:
        affine(maps, scale, shift, result)


def try_out(passes: Any, device: Any) -> list[Tensor]:
    """Results and gradients of such passes over small maps, on the CPU."""
    states = [(3, 6, 5)] * 3
    vectors = [(5,)] * 4
    x, f, grad, *learned = small_tensors(device, *states, (5, 2), *vectors)
    grad = 100 * grad  # what is wrong stands out, whatever it is divided by
    results: list[Tensor] = []
    for batch in (0, 1):  # as tokens, and as attention may return them
        layout = find_layout(f.shape, f.stride(), batch, 2)
        assert layout is not None
        for gate in small_norms(f):
            spec = ScaledSpec(gate, 1.5, layout, layout, x.dtype)
            out, saved = passes.forward(spec, x, f, learned)
            d_x, d_f, found = passes.backward(
                spec, layout, grad, f, learned, saved
            )
            results += out, d_x, d_f, *found
    return [t.cpu() for t in results]
