"""The passes over the maps of a tail on CUDA: three launches a direction.

Same functions as :mod:`.aten`; the kernels are in :mod:`.triton_kernels`.
"""

from collections.abc import Sequence
from functools import lru_cache
from inspect import signature
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime import driver

from . import triton_kernels as kernels
from .function import TailSpec

PROGRAMS = 2048
"""Programs that keep a large GPU busy; they split maps to get there. This and
the tiles are the fastest of some thirty that were tried on an H200."""

KEEPS = triton.__version__.rsplit('.', 1)[0] in ('3.6', '3.7', '3.9')
"""Whether compiled kernels of this version were tried to be launched again by
themselves. To let Triton find them takes longer than all else."""


class Geometry(NamedTuple):
    """How the kernels of a tail are launched: tiles, grids and warps."""

    tile: tuple[bool, int, int, int, int]
    span: int
    splits: int
    maps: tuple[tuple[int, int, int], int]
    vectors: tuple[int, int]
    channels: tuple[tuple[int, int, int], int]


@lru_cache(1024)
def geometry(n: int, c: int, pixels: int, last: bool) -> Geometry:
    """Launch geometry of maps; tiles are of few kinds, whatever the sizes."""
    if last:
        block, tile, warps = 32 if c <= 32 else 64, 16, 2
    else:
        block, tile, warps = (
            (32, 16, 8)
            if pixels <= 64
            else (8, 128, 4)
            if pixels <= 256
            else (4, 256, 4)
        )
    dense = c if last else pixels
    vec = next(k for k in (16, 4, 1) if dense % k == 0)
    stages = 3 if vec == 16 else 1  # narrow loads wait longer that way
    rows, tiles = n * triton.cdiv(c, block), triton.cdiv(pixels, tile)
    span = triton.cdiv(tiles, max(1, min(PROGRAMS // rows, tiles)))
    splits = triton.cdiv(tiles, span)
    images, columns = (4, 16) if n <= 4 else (32, 8) if n <= 32 else (128, 8)
    return Geometry(
        (last, vec, stages, block, tile),
        span,
        splits,
        ((rows, splits, 1), warps),
        (images, columns),
        ((triton.cdiv(c, columns), 1, 1), 4),
    )


class Launcher:
    """Launches a kernel.

    Args:
        kernel (JITFunction): It specialises on the alignment of maps and of
            its own buffers alone.
    """

    def __init__(self, kernel: Any):
        # Sizes, numbers and all other pointers.
        names = [
            name
            for name, p in signature(kernel.fn).parameters.items()
            if p.annotation is not tl.constexpr
            and name
            not in (
                'x_ptr',
                'c_ptr',
                'out_ptr',
                'grad_ptr',
                'd_x_ptr',
                'd_c_ptr',
                'partial_ptr',
                'kept_ptr',
            )
        ]
        self.kernel: Any = triton.jit(do_not_specialize=names)(kernel.fn)

    def __call__(
        self, kept: dict, grid: tuple[int, int, int], warps: int, *args: Any
    ) -> None:
        """Launch it, as compiled before where ``kept`` has it."""
        compiled = kept.get(self)
        if compiled is None:
            compiled = self.kernel[grid](*args, num_warps=warps)
            if KEEPS and compiled is not None:
                kept[self] = compiled
        else:
            active: Any = driver.active
            stream = active.get_current_stream(args[0].get_device())
            compiled.run(
                *grid,
                stream,
                compiled.function,
                compiled.packed_metadata,
                None,
                None,
                None,
                *args,
            )


LAUNCH = {
    name[: -len('_kernel')]: Launcher(kernel)
    for name, kernel in vars(kernels).items()
    if name.endswith('_kernel')
}


def forward(
    spec: TailSpec, x: Tensor, c: Tensor, learned: Sequence[Tensor]
) -> tuple[Tensor, tuple[Tensor]]:
    """See :func:`.aten.forward`."""
    norm, gate, k, relu = spec
    running_buffers = *norm[2:5], *gate[2:5]
    sizes, plan, kept = _prepare(spec, x, c, learned)
    out, partial = torch.empty_like(c), _rows(c, 3 * plan.splits * sizes[0])
    saved = _rows(c, 4 * sizes[0] + 6)
    with torch.cuda.device_of(c):
        LAUNCH['pool'](
            kept,
            *plan.maps,
            x,
            c,
            norm.mean,
            partial,
            saved,
            *sizes,
            plan.span,
            norm.batch,
            *plan.tile,
        )
        LAUNCH['vectors'](
            kept,
            *plan.channels,
            partial,
            saved,
            *learned,
            *running_buffers,
            *sizes,
            plan.splits,
            norm.eps,
            norm.momentum,
            gate.eps,
            gate.momentum,
            k,
            norm.batch,
            gate.batch,
            *plan.vectors,
        )
        LAUNCH['write'](
            kept,
            *plan.maps,
            x,
            c,
            out,
            saved,
            *sizes,
            plan.span,
            relu,
            *plan.tile,
        )
    for moved in (norm, gate):
        if moved.count is not None:
            torch.autograd.graph.increment_version(
                (moved.mean, moved.var, moved.count)
            )
    return out, (saved,)


def backward(
    spec: TailSpec,
    grad: Tensor,
    out: Tensor | None,
    c: Tensor,
    learned: Sequence[Tensor],
    saved: Sequence[Tensor],
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """See :func:`.aten.backward`."""
    norm, gate, k, relu = spec
    sizes, plan, kept = _prepare(spec, grad, c, learned)
    d_x, d_c = torch.empty_like(c), torch.empty_like(c)
    partial = _rows(c, 2 * plan.splits * sizes[0] + 2)
    d_learned = [torch.empty_like(t) for t in learned]
    out = grad if out is None else out
    with torch.cuda.device_of(c):
        LAUNCH['reduce'](
            kept,
            *plan.maps,
            grad,
            out,
            c,
            *saved,
            partial,
            *sizes,
            plan.span,
            relu,
            *plan.tile,
        )
        LAUNCH['vectors_gradients'](
            kept,
            *plan.channels,
            partial,
            *saved,
            *learned[2:6],
            *d_learned,
            *sizes,
            plan.splits,
            k,
            norm.batch,
            gate.batch,
            *plan.vectors,
        )
        LAUNCH['write_gradients'](
            kept,
            *plan.maps,
            grad,
            out,
            c,
            d_x,
            d_c,
            *saved,
            partial,
            *sizes,
            plan.span,
            plan.splits,
            norm.batch,
            relu,
            *plan.tile,
        )
    return d_x, d_c, d_learned


def _rows(c: Tensor, rows: int) -> Tensor:
    return c.new_empty((rows, c.shape[1]), dtype=torch.float32)


def _prepare(
    spec: TailSpec, x: Tensor, c: Tensor, learned: Sequence[Tensor]
) -> tuple[tuple[int, int, int], Geometry, dict]:
    """Sizes, geometry, and what was compiled for such arguments.

    Maps that do not begin at a multiple of 16 bytes are rare and not kept.
    """
    n, channels, height, width = c.shape
    sizes = n, channels, height * width
    plan = geometry(*sizes, not c.is_contiguous())
    if (x.data_ptr() | c.data_ptr()) & 15:
        return sizes, plan, {}
    dtypes = [
        t if t is None else t.dtype
        for t in (c, *learned, *spec.norm[2:5], *spec.gate[2:5])
    ]
    return (
        sizes,
        plan,
        _kept(
            c.get_device(),
            plan.tile,
            plan.vectors,
            spec.norm.batch,
            spec.gate.batch,
            spec.relu,
            *dtypes,
        ),
    )


@lru_cache(1024)
def _kept(*key: Any) -> dict:
    """Kernels compiled for arguments of a kind."""
    return {}
