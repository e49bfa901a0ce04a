"""The passes over the maps of a tail on CUDA: three launches a direction.

Same functions as :mod:`.aten`; the kernels are in :mod:`.triton_kernels`.
"""

from collections.abc import Sequence
from functools import lru_cache
from inspect import signature
from types import ModuleType
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime import driver

from . import triton_kernels
from .parts import TailSpec, TailWeights

PROGRAMS = 2048
"""Programs that keep a large GPU busy; they split maps to get there. This and
the tiles are the fastest of some thirty that were tried on an H200."""

KEEPS = triton.__version__.rsplit('.', 1)[0] in ('3.6', '3.7', '3.9')
"""Whether compiled kernels of this version were tried to be launched again by
themselves. To let Triton find them takes longer than all else."""


MOST_PLACES = 1024
"""Of a map that a program holds in its registers."""


class Held(NamedTuple):
    """How a kernel that holds whole maps is launched."""

    tile: tuple[int, int, int, int]
    maps: tuple[tuple[int, int, int], int]

    @property
    def constants(self) -> tuple:
        """What its kernel is compiled for."""
        return self.tile


@lru_cache(1024)
def held_geometry(n: int, c: int, pixels: int, last: int) -> Held:
    """Launch geometry of maps that fit; tiles are of few kinds."""
    tile = next(size for size in (64, 256, 1024) if pixels <= size)
    block, warps = (
        {64: (16, 8), 256: (16, 16), 1024: (8, 16)}[tile]
        if last
        else {64: (8, 4), 256: (4, 8), 1024: (1, 8)}[tile]
    )
    grid = n * triton.cdiv(c, block), 1, 1
    return Held(
        (last, widest(c if last else pixels), block, tile), (grid, warps)
    )


def widest(dense: int) -> int:
    """What divides the dimension that is dense in memory."""
    return next(k for k in (16, 4, 1) if dense % k == 0)


class Geometry(NamedTuple):
    """How the kernels of a tail are launched: tiles, grids and warps."""

    tile: tuple[int, int, int, int, int]
    span: int
    splits: int
    maps: tuple[tuple[int, int, int], int]
    vectors: tuple[int, int]
    channels: tuple[tuple[int, int, int], int]

    @property
    def constants(self) -> tuple:
        """What its kernels are compiled for."""
        return *self.tile, *self.vectors


@lru_cache(1024)
def geometry(n: int, c: int, pixels: int, last: int) -> Geometry:
    """Launch geometry of maps; tiles are of few kinds, whatever the sizes."""
    if last:
        block = 32 if c <= 32 else 64
        tile = 16
        warps = 2
    else:
        block, tile, warps = (
            (32, 16, 8)
            if pixels <= 64
            else (8, 128, 4)
            if pixels <= 256
            else (4, 256, 4)
        )
    vec = widest(c if last else pixels)
    stages = 3 if vec == 16 else 1  # narrow loads wait longer that way
    rows = n * triton.cdiv(c, block)
    tiles = triton.cdiv(pixels, tile)
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


ALIGNED = (
    *('x_ptr', 'c_ptr', 'f_ptr', 'out_ptr'),
    *('grad_ptr', 'd_x_ptr', 'd_c_ptr', 'd_f_ptr'),
    *('partial_ptr', 'kept_ptr'),
)
"""Maps and own buffers, by the names that kernels have for them."""


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
            if p.annotation is not tl.constexpr and name not in ALIGNED
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


def launchers(kernels: ModuleType) -> dict[str, Launcher]:
    """Launchers of a module's kernels, by their names."""
    return {
        name[: -len('_kernel')]: Launcher(kernel)
        for name, kernel in vars(kernels).items()
        if name.endswith('_kernel')
    }


LAUNCH = launchers(triton_kernels)


def forward(
    spec: TailSpec, x: Tensor, c: Tensor, learned: Sequence[Tensor]
) -> tuple[Tensor, tuple[Tensor]]:
    """See :func:`.aten.forward`."""
    norm = spec.norm
    gate = spec.gate
    weights = TailWeights(*learned)
    sizes, last = _sizes(c)
    images, channels, pixels = sizes
    out = torch.empty_like(c)
    saved = rows(c, 4 * images + 6, channels)
    if pixels <= MOST_PLACES and not (norm.batch or gate.batch):
        held = held_geometry(*sizes, last)
        with torch.cuda.device_of(c):
            LAUNCH['hold'](
                _kept_for(spec, x, c, learned, held),
                *held.maps,
                x,
                c,
                out,
                saved,
                *weights,
                norm.mean,
                norm.var,
                gate.mean,
                gate.var,
                *sizes,
                norm.eps,
                gate.eps,
                spec.k,
                spec.relu,
                *held.tile,
            )
        return out, (saved,)
    plan = geometry(*sizes, last)
    kept = _kept_for(spec, x, c, learned, plan)
    partial = rows(c, 3 * plan.splits * images, channels)
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
            *weights,
            norm.mean,
            norm.var,
            norm.count,
            gate.mean,
            gate.var,
            gate.count,
            *sizes,
            plan.splits,
            norm.eps,
            norm.momentum,
            gate.eps,
            gate.momentum,
            spec.k,
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
            spec.relu,
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
    weights = TailWeights(*learned)
    sizes, last = _sizes(c)
    images, channels, _ = sizes
    plan = geometry(*sizes, last)
    kept = _kept_for(spec, grad, c, learned, plan)
    d_x = torch.empty_like(c)
    d_c = torch.empty_like(c)
    partial = rows(c, 2 * plan.splits * images + 2, channels)
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
            spec.relu,
            *plan.tile,
        )
        LAUNCH['vectors_gradients'](
            kept,
            *plan.channels,
            partial,
            *saved,
            *weights.gate[:4],
            *d_learned,
            *sizes,
            plan.splits,
            spec.k,
            spec.norm.batch,
            spec.gate.batch,
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
            spec.norm.batch,
            spec.relu,
            *plan.tile,
        )
    return d_x, d_c, d_learned


def rows(maps: Tensor, count: int, channels: int) -> Tensor:
    """A buffer of vectors, (count, C), beside maps."""
    return maps.new_empty((count, channels), dtype=torch.float32)


def _sizes(c: Tensor) -> tuple[tuple[int, int, int], bool]:
    """Images, channels and pixels, and whether channels come last."""
    n, channels, height, width = c.shape
    return (n, channels, height * width), not c.is_contiguous()


def _kept_for(
    spec: TailSpec,
    x: Tensor,
    c: Tensor,
    learned: Sequence[Tensor],
    plan: Geometry | Held,
) -> dict:
    """What was compiled for such arguments of a tail."""
    vectors = *learned, *spec.norm[2:5], *spec.gate[2:5]
    key = spec.norm.batch, spec.gate.batch, spec.relu
    return kept_kernels((x, c), vectors, *plan.constants, *key)


def kept_kernels(
    maps: tuple[Tensor, Tensor], vectors: Sequence[Tensor | None], *key: Any
) -> dict:
    """What was compiled for such arguments.

    Maps that do not begin at a multiple of 16 bytes are rare and not kept.

    Args:
        maps (tuple): Two that are given.
        vectors (Sequence): That are given, None where one is missing.
        *key (object): All that the kernels depend on beside dtypes.
    """
    first, second = maps
    if (first.data_ptr() | second.data_ptr()) & 15:
        return {}
    dtypes = [t if t is None else t.dtype for t in (second, *vectors)]
    return _kept(second.get_device(), *key, *dtypes)


@lru_cache(1024)
def _kept(*key: Any) -> dict:
    """Kernels compiled for arguments of a kind."""
    return {}
