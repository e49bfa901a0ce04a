"""The passes over the maps of a tail on CUDA: three launches a direction.

Same functions as :mod:`.aten`; the kernels are in :mod:`.triton_kernels`.
"""

from collections.abc import Callable
from functools import lru_cache, wraps
from inspect import signature
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import triton_kernels as kernels
from .formulas import Learned, Running, TailSpec

PROGRAMS = 1024
"""Programs that keep a large GPU busy; reductions split maps to get there."""

KINDS = {'none': 0, 'running': 1, 'batch': 2}

KEEPS = triton.__version__.rsplit('.', 1)[0] in ('3.7', '3.9')
"""Whether compiled kernels of this version were tried to be launched again by
themselves. To let Triton find them takes longer than all else."""


class Saved(NamedTuple):
    """X and M, (N, C) each, and statistics of both norms, (4, C), in one."""

    kept: Tensor


class Geometry(NamedTuple):
    """How the kernels of a tail are launched; sizes are as they take them."""

    sizes: tuple[int, int, int]
    tile: tuple[bool, int, int, int]
    splits: int
    span: int
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
    sizes = (n, c // vec, pixels) if last else (n, c, pixels // vec)
    return Geometry(sizes, (last, vec, block, tile), splits, span,
                    (rows, splits, 1), (rows * tiles, 1, 1),
                    (images, columns), (triton.cdiv(c, columns), 1, 1))


class Launcher:
    """A kernel, and what Triton compiled of it.

    Args:
        kernel (JITFunction): It specialises on the arguments that the key
            below tells apart, and on no others.
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
        self.kept = {}

    def __call__(self, grid: tuple[int, int, int], key: tuple,
                 *args: Any) -> None:
        """Launch the kernel; ``key`` are dtypes, device and constants."""
        compiled = self.kept.get(key)
        if compiled is not None:
            compiled[grid](*args)
            return
        compiled = self.kernel[grid](*args, num_warps=self.warps)
        if KEEPS and compiled is not None and key[0]:
            self.kept[key] = compiled


LAUNCH = {
    name[:-len('_kernel')]: Launcher(kernel, 4 if 'vectors' in name else 8)
    for name, kernel in vars(kernels).items() if name.endswith('_kernel')}


def _on_device_of_maps(function: Callable) -> Callable:
    """Launch where the maps lie: Triton takes the current device."""

    @wraps(function)
    def launch(spec: TailSpec, maps: Tensor, *args: Any) -> tuple:
        if maps.is_cuda and maps.get_device() != torch.cuda.current_device():
            with torch.cuda.device(maps.device):
                return function(spec, maps, *args)
        return function(spec, maps, *args)

    return launch


@_on_device_of_maps
def forward(spec: TailSpec, x: Tensor, c: Tensor, learned: Learned,
            norm_running: Running,
            gate_running: Running) -> tuple[Tensor, Saved]:
    """See :func:`.aten.forward`."""
    plan, key = _prepare(x, c, learned)
    n, channels, height, width = c.shape
    norm, gate = KINDS[spec.norm], KINDS[spec.gate]
    partial = _scratch(c, 3 * plan.splits * n)
    kept, vectors = _scratch(c, 2 * n + 4), _scratch(c, 2 * n)
    out = torch.empty_like(c)
    constants = norm == 2, *plan.tile
    LAUNCH['pool'](plan.reductions, (*key, constants), x, c, partial,
                   *plan.sizes, plan.span, *constants)
    moves = spec.norm_momentum is not None, spec.gate_momentum is not None
    constants = norm, gate, *moves, *plan.vectors
    moving = *norm_running, *gate_running
    LAUNCH['vectors'](
        plan.channels, (*key, constants, *_dtypes(moving)), partial, kept,
        vectors, *_pointers(c, *learned, *moving), n, channels,
        height * width, plan.splits, plan.span * plan.tile[3], spec.norm_eps,
        spec.norm_momentum or 0., spec.gate_eps, spec.gate_momentum or 0.,
        spec.gate_scale, *constants)
    constants = norm > 0, spec.relu, *plan.tile
    LAUNCH['write'](plan.writes, (*key, constants), x, c, out, vectors, kept,
                    *plan.sizes, *constants)
    for moved, running in zip(moves, (norm_running, gate_running)):
        if moved:
            torch.autograd.graph.increment_version(running)
    return out, Saved(kept)


@_on_device_of_maps
def backward(spec: TailSpec, grad: Tensor, out: Tensor | None, c: Tensor,
             learned: Learned, gate_running: Running, saved: Saved,
             needs_x: bool, needs_c: bool,
             ) -> tuple[Tensor | None, Tensor | None, Learned]:
    """See :func:`.aten.backward`."""
    del gate_running  # their values are among the statistics
    plan, key = _prepare(grad, c, learned)
    n, channels, height, width = c.shape
    norm, gate = KINDS[spec.norm], KINDS[spec.gate]
    partial = _scratch(c, 2 * plan.splits * n)
    vectors, rows = _scratch(c, 3 * n), _scratch(c, 10)
    d_x = torch.empty_like(c) if needs_x else None
    d_c = torch.empty_like(c) if needs_c else None
    out = grad if out is None else out
    constants = norm > 0, spec.relu, *plan.tile
    LAUNCH['reduce'](plan.reductions, (*key, constants), grad, out, c,
                     saved.kept, partial, *plan.sizes, plan.span, *constants)
    constants = norm, gate, *plan.vectors
    LAUNCH['vectors_gradients'](
        plan.channels, (*key, constants), partial, saved.kept, vectors, rows,
        *_pointers(c, *learned), n, channels, height * width, plan.splits,
        spec.gate_scale, *constants)
    if needs_x or needs_c:
        constants = norm == 2, spec.relu, needs_x, needs_c, *plan.tile
        LAUNCH['write_gradients'](
            plan.writes, (*key, constants), grad, out, c,
            *_pointers(c, d_x, d_c), saved.kept, vectors, rows, *plan.sizes,
            *constants)
    _, _, weight, bias, _, _, *rest = rows.unbind()
    found = weight, bias, rows[4:6].view(channels, 2), *rest
    return d_x, d_c, Learned(*(
        None if t is None else d for t, d in zip(learned, found)))


def _scratch(c: Tensor, rows: int) -> Tensor:
    return c.new_empty((rows, c.shape[1]), dtype=torch.float32)


def _prepare(x: Tensor, c: Tensor,
             learned: Learned) -> tuple[Geometry, tuple]:
    """Geometry, and what compiled kernels are told apart by.

    Maps that do not begin at a multiple of 16 bytes are rare and not kept.
    """
    n, channels, height, width = c.shape
    aligned = not (x.data_ptr() | c.data_ptr()) & 15
    return (geometry(n, channels, height * width, not c.is_contiguous()),
            (aligned, c.device.index, c.dtype, *_dtypes(learned)))


def _dtypes(tensors: tuple[Tensor | None, ...]) -> list[torch.dtype | None]:
    return [t if t is None else t.dtype for t in tensors]


def _pointers(like: Tensor, *tensors: Tensor | None) -> list[Tensor]:
    """Arguments of a kernel; any pointer where it reads none."""
    return [like if t is None else t for t in tensors]


def try_on(device: torch.device) -> None:
    """Run all six kernels once, on a map of one pixel."""
    one = torch.ones(1, 1, 1, 1, device=device)
    vector, pair = torch.ones(1, device=device), torch.ones(1, 2,
                                                            device=device)
    learned = Learned(vector, vector, pair, vector, vector, vector, vector)
    running = Running(vector, vector)
    spec = TailSpec('running', 1., None, 'running', 1., None, 1., True)
    out, saved = forward(spec, one, one, learned, running, running)
    backward(spec, one, out, one, learned, running, saved, True, True)
