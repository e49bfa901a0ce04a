"""The passes over the maps of a tail on CUDA: three launches a direction.

Same functions as :mod:`.aten`; the kernels are in :mod:`.triton_kernels`.
"""

from collections.abc import Iterable
from functools import lru_cache
from inspect import signature
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime import driver

from . import triton_kernels as kernels
from .formulas import Norm, Parameters, TailSpec

PROGRAMS = 1024
"""Programs that keep a large GPU busy; reductions split maps to get there."""

KEEPS = triton.__version__.rsplit('.', 1)[0] in ('3.7', '3.9')
"""Whether compiled kernels of this version were tried to be launched again by
themselves. To let Triton find them takes longer than all else."""


class Geometry(NamedTuple):
    """How the kernels of a tail are launched: tiles, splits and grids."""

    tile: tuple[bool, int, int, int]
    span: int
    splits: int
    reductions: tuple[int, int, int]
    writes: tuple[int, int, int]
    vectors: tuple[int, int]
    channels: tuple[int, int, int]


@lru_cache(1024)
def geometry(n: int, c: int, pixels: int, last: bool) -> Geometry:
    """Launch geometry of maps; tiles are of few kinds, whatever the sizes."""
    if last:
        block, tile = (32, 64) if c <= 32 else (128, 16)
    else:
        block, tile = ((32, 64) if pixels <= 64 else (8, 256)
                       if pixels <= 256 else (2, 1024))
    dense = c if last else pixels
    vec = next(k for k in (16, 4, 1) if dense % k == 0)
    rows, tiles = n * triton.cdiv(c, block), triton.cdiv(pixels, tile)
    span = triton.cdiv(tiles, max(1, min(PROGRAMS // rows, tiles)))
    splits = triton.cdiv(tiles, span)
    images, columns = (4, 32) if n <= 4 else (32, 16)
    return Geometry((last, vec, block, tile), span, splits,
                    (rows, splits, 1), (rows * tiles, 1, 1),
                    (images, columns), (triton.cdiv(c, columns), 1, 1))


class Launcher:
    """Launches a kernel.

    Args:
        kernel (JITFunction): It specialises on the maps' alignment alone.
        warps (int): Warps of a program.
    """

    def __init__(self, kernel: Any, warps: int):
        # Sizes, numbers, and all pointers but those of maps.
        names = [name for name, p in signature(kernel.fn).parameters.items()
                 if p.annotation is not tl.constexpr and name not in (
                     'x_ptr', 'c_ptr', 'out_ptr', 'grad_ptr', 'd_x_ptr',
                     'd_c_ptr')]
        self.kernel = triton.jit(kernel.fn, do_not_specialize=names)
        self.warps = warps

    def __call__(self, kept: dict, grid: tuple[int, int, int],
                 *args: Any) -> None:
        """Launch it, as compiled before where ``kept`` has it."""
        compiled = kept.get(self)
        if compiled is None:
            compiled = self.kernel[grid](*args, num_warps=self.warps)
            if KEEPS and compiled is not None:
                kept[self] = compiled
        else:
            stream = driver.active.get_current_stream(args[0].get_device())
            compiled.run(*grid, stream, compiled.function,
                         compiled.packed_metadata, None, None, None, *args)


LAUNCH = {
    name[:-len('_kernel')]: Launcher(kernel, 4 if 'vectors' in name else 8)
    for name, kernel in vars(kernels).items() if name.endswith('_kernel')}


def forward(spec: TailSpec, x: Tensor, c: Tensor,
            learned: Parameters) -> tuple[Tensor, tuple[Tensor]]:
    """See :func:`.aten.forward`."""
    norm, gate, k, relu = spec
    moving = *norm[2:5], *gate[2:5]
    sizes, plan, kept = _prepare(spec, x, c, learned)
    out, partial = torch.empty_like(c), _rows(c, 3 * plan.splits * sizes[0])
    saved = _rows(c, 4 * sizes[0] + 5)
    with torch.cuda.device_of(c):
        LAUNCH['pool'](kept, plan.reductions, x, c, partial, *sizes,
                       plan.span, *plan.tile)
        LAUNCH['vectors'](
            kept, plan.channels, partial, saved, *learned, *moving, *sizes,
            plan.splits, plan.span * plan.tile[3], norm.eps, norm.momentum,
            gate.eps, gate.momentum, k, norm.batch, gate.batch, *plan.vectors)
        LAUNCH['write'](kept, plan.writes, x, c, out, saved, *sizes, relu,
                        *plan.tile)
    for moved in (norm, gate):
        if moved.count is not None:
            torch.autograd.graph.increment_version(moved[2:5])
    return out, (saved, )


def backward(spec: TailSpec, grad: Tensor, out: Tensor | None, c: Tensor,
             learned: Parameters, saved: Iterable[Tensor],
             ) -> tuple[Tensor, Tensor, Parameters]:
    """See :func:`.aten.backward`."""
    norm, gate, k, relu = spec
    sizes, plan, kept = _prepare(spec, grad, c, learned)
    d_x, d_c = torch.empty_like(c), torch.empty_like(c)
    partial = _rows(c, 2 * plan.splits * sizes[0] + 2)
    d_learned = Parameters(*map(torch.empty_like, learned))
    out = grad if out is None else out
    with torch.cuda.device_of(c):
        LAUNCH['reduce'](kept, plan.reductions, grad, out, c, *saved, partial,
                         *sizes, plan.span, relu, *plan.tile)
        LAUNCH['vectors_gradients'](
            kept, plan.channels, partial, *saved, *learned[2:6], *d_learned,
            *sizes, plan.splits, k, norm.batch, gate.batch, *plan.vectors)
        LAUNCH['write_gradients'](
            kept, plan.writes, grad, out, c, d_x, d_c, *saved, partial,
            *sizes, plan.splits, norm.batch, relu, *plan.tile)
    return d_x, d_c, d_learned


def _rows(c: Tensor, rows: int) -> Tensor:
    return c.new_empty((rows, c.shape[1]), dtype=torch.float32)


def _prepare(spec: TailSpec, x: Tensor, c: Tensor, learned: Parameters,
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
    return sizes, plan, _kept(c.get_device(), plan.tile, plan.vectors,
                              spec.norm.batch, spec.gate.batch, spec.relu,
                              *dtypes)


@lru_cache(1024)
def _kept(*key: Any) -> dict:
    """Kernels compiled for arguments of a kind."""
    return {}


def try_on(device: torch.device) -> None:
    """Run all six kernels once, on a map of one pixel."""
    one = torch.ones(1, 1, 1, 1, device=device)
    vector, pair = one.view(1), torch.ones(1, 2, device=device)
    learned = Parameters(vector, vector, pair, *[vector] * 4)
    norm = Norm(False, 1., vector, vector)
    spec = TailSpec(norm, norm, 1., True)
    out, saved = forward(spec, one, one, learned)
    backward(spec, one, out, one, learned, saved)
