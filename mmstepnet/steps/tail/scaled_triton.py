"""The passes over the maps of a step at a branch's end, on CUDA.

Same functions as :mod:`.scaled_aten`; the kernels are in
:mod:`.scaled_kernels`, three a direction.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from . import scaled_kernels as kernels
from . import triton as tails
from .parts import GateWeights, Layout, ScaledSpec
from .triton import (
    Geometry,
    Held,
    geometry,
    held_geometry,
    kept_kernels,
    launchers,
    rows,
)

LAUNCH = launchers(kernels)


def forward(
    spec: ScaledSpec, x: Tensor, f: Tensor, learned: Sequence[Tensor]
) -> tuple[Tensor, tuple[Tensor]]:
    """See :func:`.scaled_aten.forward`."""
    gate = spec.gate
    layout = spec.layout
    weights = GateWeights(*learned)
    sizes = layout.sizes
    out = torch.empty_like(f)
    saved = rows(f, 4 * layout.images + 1, layout.channels)
    # Offsets inside of a tile have 32 bits, and a held one has all places.
    is_small = layout.places <= tails.MOST_PLACES and f.numel() < 2**31
    if is_small and not gate.batch:
        held = held_geometry(*sizes, layout.order)
        with torch.cuda.device_of(f):
            LAUNCH['hold'](
                _kept_for(spec, x, f, learned, held),
                *held.maps,
                x,
                f,
                out,
                saved,
                *weights,
                gate.mean,
                gate.var,
                *sizes,
                gate.eps,
                spec.k,
                spec.x_layout.order,
                *held.tile,
            )
        return out, (saved,)
    plan = geometry(*sizes, layout.order)
    kept = _kept_for(spec, x, f, learned, plan)
    partial = rows(f, 2 * plan.splits * layout.images, layout.channels)
    with torch.cuda.device_of(f):
        LAUNCH['pool'](
            kept,
            *plan.maps,
            x,
            f,
            partial,
            *sizes,
            plan.span,
            spec.x_layout.order,
            *plan.tile,
        )
        LAUNCH['vectors'](
            kept,
            *plan.channels,
            partial,
            saved,
            *weights,
            gate.mean,
            gate.var,
            gate.count,
            *sizes,
            plan.splits,
            gate.eps,
            gate.momentum,
            spec.k,
            gate.batch,
            *plan.vectors,
        )
        LAUNCH['write'](
            kept, *plan.maps, f, out, saved, *sizes, plan.span, *plan.tile
        )
    if gate.count is not None:
        torch.autograd.graph.increment_version(
            (gate.mean, gate.var, gate.count)
        )
    return out, (saved,)


def backward(
    spec: ScaledSpec,
    layout: Layout,
    grad: Tensor,
    f: Tensor,
    learned: Sequence[Tensor],
    saved: Sequence[Tensor],
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """See :func:`.scaled_aten.backward`."""
    weights = GateWeights(*learned)
    images, channels, _ = layout.sizes
    plan = geometry(*layout.sizes, spec.layout.order)
    of_grad = geometry(*layout.sizes, layout.order)
    kept = _kept_for(spec, grad, f, learned, plan, of_grad.tile)
    d_f = torch.empty_like(grad)
    d_x = f.new_empty((images, channels), dtype=spec.x_dtype)
    partial = rows(f, plan.splits * images, channels)
    d_learned = [torch.empty_like(t) for t in learned]
    with torch.cuda.device_of(f):
        LAUNCH['reduce'](
            kept,
            *plan.maps,
            grad,
            f,
            partial,
            *layout.sizes,
            plan.span,
            layout.order,
            *plan.tile,
        )
        LAUNCH['vectors_gradients'](
            kept,
            *plan.channels,
            partial,
            *saved,
            *weights[:4],
            d_x,
            *d_learned,
            *layout.sizes,
            plan.splits,
            spec.k,
            spec.gate.batch,
            *plan.vectors,
        )
        LAUNCH['write_gradients'](
            kept,
            *of_grad.maps,
            grad,
            d_f,
            *saved,
            partial,
            *layout.sizes,
            of_grad.span,
            *of_grad.tile,
        )
    return d_x, d_f, d_learned


def _kept_for(
    spec: ScaledSpec,
    maps: Tensor,
    f: Tensor,
    learned: Sequence[Tensor],
    plan: Geometry | Held,
    *key: Any,
) -> dict:
    """What was compiled for such arguments."""
    gate = spec.gate
    vectors = *learned, gate.mean, gate.var, gate.count
    own = spec.x_layout.order, spec.x_dtype, gate.batch
    return kept_kernels((maps, f), vectors, *plan.constants, *own, *key)
