"""The passes over the maps of a tail on CUDA: three launches a direction.

Same functions as :mod:`.aten`; the kernels are in :mod:`.triton_kernels`.
"""

from collections import defaultdict, namedtuple
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
import triton
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


Geometry = namedtuple('Geometry', 'tile span splits maps vectors channels')
"""How the kernels of a tail are launched. ``tile`` are LAST, VEC, STAGES, BC
and BP of those over maps, ``span`` the tiles of each of ``splits``, ``maps``
their grid and warps; ``vectors`` and ``channels`` are BN and BC and grid and
warps of the others."""

KEPT: dict = defaultdict(dict)
"""Compiled kernels, by what they were compiled for."""


@lru_cache(1024)
def geometry(n: int, c: int, pixels: int, last: bool) -> Geometry:
    """Launch geometry of maps; tiles are of few kinds, whatever the sizes."""
    if last:
        block, tile, warps = 32 if c <= 32 else 64, 16, 2
    else:
        block, tile, warps = ((32, 16, 8) if pixels <= 64 else (8, 128, 4)
                              if pixels <= 256 else (4, 256, 4))
    dense = c if last else pixels
    vec = next(k for k in (16, 4, 1) if dense % k == 0)
    stages = 3 if vec == 16 else 1  # narrow loads wait longer that way
    rows, tiles = n * triton.cdiv(c, block), triton.cdiv(pixels, tile)
    span = triton.cdiv(tiles, max(1, min(PROGRAMS // rows, tiles)))
    splits = triton.cdiv(tiles, span)
    images, columns = (4, 16) if n <= 4 else (32, 8) if n <= 32 else (128, 8)
    return Geometry((last, vec, stages, block, tile), span, splits,
                    ((rows, splits, 1), warps),
                    (images, columns), ((triton.cdiv(c, columns), 1, 1), 4))


def launch(kernel: Any, kept: dict, plan: tuple[tuple[int, int, int], int],
           *args: Any) -> None:
    """Launch a kernel, as compiled before where ``kept`` has it.

    Args:
        kernel (JITFunction): One of :mod:`.triton_kernels`.
        kept (dict): What was compiled for arguments of this kind.
        plan (tuple): Grid, and warps of a program.
        *args: What the kernel is given.
    """
    grid, warps = plan
    compiled = kept.get(kernel.fn)
    if compiled is None:
        compiled = kernel[grid](*args, num_warps=warps)
        if KEEPS and compiled is not None:
            kept[kernel.fn] = compiled
    else:
        active: Any = driver.active
        stream = active.get_current_stream(args[0].get_device())
        compiled.run(*grid, stream, compiled.function,
                     compiled.packed_metadata, None, None, None, *args)


def forward(spec: TailSpec, x: Tensor, c: Tensor,
            learned: Sequence[Tensor]) -> tuple[Tensor, tuple[Tensor]]:
    """See :func:`.aten.forward`."""
    norm, gate, k, relu = spec
    sizes, plan, kept = _prepare(spec, x, c, learned)
    out, partial = torch.empty_like(c), _rows(c, 3 * plan.splits * sizes[0])
    saved = _rows(c, 4 * sizes[0] + 6)
    with torch.cuda.device_of(c):
        launch(kernels.pool_kernel, kept, plan.maps, x, c, norm.mean, partial,
               saved, *sizes, plan.span, norm.batch, *plan.tile)
        launch(kernels.vectors_kernel, kept, plan.channels, partial, saved,
               *learned, *norm[2:5], *gate[2:5], *sizes, plan.splits, norm.eps,
               norm.momentum, gate.eps, gate.momentum, k, norm.batch,
               gate.batch, *plan.vectors)
        launch(kernels.write_kernel, kept, plan.maps, x, c, out, saved,
               *sizes, plan.span, relu, *plan.tile)
    torch.autograd.graph.increment_version([
        t for moved in (norm, gate) if moved.count is not None
        for t in moved[2:5]])
    return out, (saved, )


def backward(spec: TailSpec, grad: Tensor, out: Tensor | None, c: Tensor,
             learned: Sequence[Tensor], saved: Sequence[Tensor],
             ) -> tuple[Tensor, Tensor, list[Tensor]]:
    """See :func:`.aten.backward`."""
    norm, gate, k, relu = spec
    sizes, plan, kept = _prepare(spec, grad, c, learned)
    d_x, d_c = torch.empty_like(c), torch.empty_like(c)
    partial = _rows(c, 2 * plan.splits * sizes[0] + 2)
    d_learned = [torch.empty_like(t) for t in learned]
    out = grad if out is None else out
    with torch.cuda.device_of(c):
        launch(kernels.reduce_kernel, kept, plan.maps, grad, out, c, *saved,
               partial, *sizes, plan.span, relu, *plan.tile)
        launch(kernels.vectors_gradients_kernel, kept, plan.channels, partial,
               *saved, *learned[2:6], *d_learned, *sizes, plan.splits, k,
               norm.batch, gate.batch, *plan.vectors)
        launch(kernels.write_gradients_kernel, kept, plan.maps, grad, out, c,
               d_x, d_c, *saved, partial, *sizes, plan.span, norm.batch, relu,
               *plan.tile)
    return d_x, d_c, d_learned


def _rows(c: Tensor, rows: int) -> Tensor:
    return c.new_empty((rows, c.shape[1]), dtype=torch.float32)


def _prepare(spec: TailSpec, x: Tensor, c: Tensor, learned: Sequence[Tensor],
             ) -> tuple[tuple[int, int, int], Geometry, dict]:
    """Sizes, geometry, and what was compiled for such arguments.

    Maps that do not begin at a multiple of 16 bytes are rare and not kept.
    """
    n, channels, height, width = c.shape
    sizes = n, channels, height * width
    plan = geometry(*sizes, not c.is_contiguous())
    if (x.data_ptr() | c.data_ptr()) & 15:
        return sizes, plan, {}
    dtypes = [t if t is None else t.dtype for t in (
        c, *learned, *spec.norm[2:5], *spec.gate[2:5])]
    return sizes, plan, KEPT[(
        c.get_device(), plan.tile, plan.vectors, spec.norm.batch,
        spec.gate.batch, spec.relu, *dtypes)]
