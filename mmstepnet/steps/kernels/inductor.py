"""The fused residual step's passes over memory, compiled for the CPU.

The formulas of :mod:`.aten`, each pass one loop that Inductor
writes and the machine's C++ compiler builds, once for all sizes of maps. The
backward masks the gradient where it reads it, so that the masked one is never
stored.
"""

import warnings
from functools import cache, cached_property

import torch
from torch import Tensor

from mmstepnet.precision import accumulation_dtype

from . import aten
from .aten import coefficients, rows

SMALLEST = 3 << 19
"""Elements of the smallest maps whose passes are compiled. The compiler takes
a quarter of a minute, which a job on small maps would not win back."""


@cache
def is_available() -> bool:
    """Whether this PyTorch can compile here: 2.6 or later, a C++ compiler."""
    if torch.__version__ < (2, 6):
        return False
    try:
        from torch._inductor.cpp_builder import get_cpp_compiler
        get_cpp_compiler()
    except (ImportError, RuntimeError):  # no compiler, or an unknown PyTorch
        return False
    return True


class _Kernel:
    """A function of tensors that is compiled when it is first called.

    Where the compiler fails, it says so once and runs as it stands; so it
    does for what would be one graph more than Dynamo allows.
    """

    broken = False

    def __init__(self, function):
        self.function = function

    @cached_property
    def compiled(self):
        # Not a graph a size: R50 alone has four sizes of maps. Dynamo takes
        # as long to import as PyTorch, so not before it is wanted.
        return torch.compile(self.function, dynamic=True, fullgraph=True)

    def __call__(self, *args):
        if _Kernel.broken:
            return self.function(*args)
        # One graph, whatever mode the caller is in and whatever tensors these
        # are views of.
        args = [a.detach() if isinstance(a, Tensor) else a for a in args]
        with torch.no_grad(), torch.autocast('cpu', enabled=False):
            try:
                return self.compiled(*args)
            except torch._dynamo.exc.FailOnRecompileLimitHit:
                return self.function(*args)
            except torch._dynamo.exc.BackendCompilerFailed as error:
                _Kernel.broken = True
                warnings.warn(
                    'the residual step runs uncompiled, because the C++ '
                    f'compiler that PyTorch uses failed: {error}',
                    stacklevel=2)
                return self.function(*args)


@_Kernel
def _moments(maps: Tensor, wide: torch.dtype) -> tuple[Tensor, Tensor]:
    maps = maps.to(wide)
    average = maps.mean(1, keepdim=True)
    return average, (maps - average).square().mean(1)


@_Kernel
def _step(x: Tensor, c: Tensor, scale: Tensor, shift: Tensor, relu: bool,
          in_place: bool) -> Tensor:
    total = x + (c * scale + shift)
    out = (torch.relu(total) if relu else total).to(c.dtype)
    return c.copy_(out) if in_place else out


@_Kernel
def _reduce(grad: Tensor, out: Tensor | None, c: Tensor,
            centre: Tensor) -> tuple[Tensor, Tensor]:
    grad = _mask(grad, out).to(centre.dtype)
    return grad.sum(1), (grad * (c - centre)).sum(1)


@_Kernel
def _gradients(grad: Tensor, out: Tensor | None, c: Tensor | None,
               scale: Tensor, slope: Tensor, offset: Tensor,
               x_offset: Tensor) -> tuple[Tensor, Tensor]:
    masked = _mask(grad, out)
    if c is not None:
        offset = c * slope + offset
    return ((masked + x_offset).to(grad.dtype),
            (masked * scale + offset).to(grad.dtype))


def _mask(grad: Tensor, out: Tensor | None) -> Tensor:
    return grad if out is None else torch.where(out <= 0, 0, grad)


mean = aten.mean
"""Nothing to gain."""


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and population variance over the map, both (N, C)."""
    found = _moments(rows(x), accumulation_dtype(x.dtype))
    return tuple(t.view(x.shape[:2]) for t in found)


def step(x: Tensor, c: Tensor, centre: Tensor | None, scale: Tensor,
         shift: Tensor | None, relu: bool, in_place: bool = False) -> Tensor:
    """See :func:`mmstepnet.steps.kernels.aten.step`."""
    scale, shift, centre = _filled(scale, shift, centre)
    shift = shift - centre * scale
    out = _step(
        rows(x), rows(c), *_coefficients(c, scale, shift), relu, in_place)
    return c if in_place else _as_maps(out, c)


def reduce(grad: Tensor, out: Tensor | None, c: Tensor,
           centre: Tensor | None) -> tuple[Tensor, Tensor]:
    """See :func:`mmstepnet.steps.kernels.aten.reduce`."""
    if centre is None:
        centre = torch.zeros(
            c.shape[:2], dtype=accumulation_dtype(c.dtype), device=c.device)
    found = _reduce(*_rows(grad, out, c), coefficients(centre, c))
    return tuple(t.view(c.shape[:2]) for t in found)


def gradients(
        grad: Tensor, out: Tensor | None, c: Tensor | None,
        centre: Tensor | None, scale: Tensor, slope: Tensor | None,
        offset: Tensor | None, x_offset: Tensor | None, needs_x: bool,
        needs_c: bool) -> tuple[Tensor | None, Tensor | None]:
    """See :func:`mmstepnet.steps.kernels.aten.gradients`."""
    if not (needs_x and needs_c):  # of a frozen part: one map to write
        return aten.gradients(grad, out, c, centre, scale, slope, offset,
                              x_offset, needs_x, needs_c)
    maps = _rows(grad, out, None if slope is None else c)
    scale, slope, centre, offset, x_offset = _filled(
        scale, slope, centre, offset, x_offset)
    found = _gradients(*maps, *_coefficients(
        grad, scale, slope, offset - centre * slope, x_offset))
    return tuple(_as_maps(t, grad) for t in found)


def _rows(*maps: Tensor | None) -> list[Tensor | None]:
    return [None if t is None else rows(t) for t in maps]


def _filled(first: Tensor, *others: Tensor | None) -> list[Tensor]:
    """Zeros (N, C) where None is given: few graphs, at no cost."""
    return [first, *(torch.zeros_like(first) if t is None else t
                     for t in others)]


def _coefficients(maps: Tensor, *values: Tensor) -> list[Tensor]:
    return [coefficients(t, maps) for t in values]


def _as_maps(t: Tensor, like: Tensor) -> Tensor:
    """Turn ``rows`` of maps back into maps (N, C, H, W)."""
    n, c, h, w = like.shape
    if like.is_contiguous():
        return t.view(n, c, h, w)
    return t.view(n, h, w, c).permute(0, 3, 1, 2)
