"""The fused residual step's passes over memory, launched as Triton kernels.

The functions are those of :mod:`.plain`, the kernels :mod:`.triton_programs`.
"""

from collections.abc import Callable
from functools import wraps

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmstepnet.precision import accumulation_dtype

from .triton_programs import (
    gradients_kernel,
    moments_kernel,
    reduce_kernel,
    step_kernel,
    total_kernel,
)

TILE = 4096
"""Elements of a tile."""

WARPS = 8
"""Warps of a program: with 4, a tile of scalar loads spills registers."""

PROGRAMS = 1024
"""Programs that keep a large GPU busy; reductions split maps to get there."""


class _Launch:
    """Shape, strides and tile that the kernels of one map share."""

    def __init__(self, maps: Tensor):
        n, c, h, w = maps.shape
        self.n, self.c, self.pixels = n, c, h * w
        if maps.is_contiguous():
            self.strides = (c * h * w, h * w, 1)
            self.bp = min(triton.next_power_of_2(self.pixels), 1024,
                          TILE)
            self.bc = min(TILE // self.bp, triton.next_power_of_2(c))
        else:
            self.strides = (c * h * w, 1, c)
            self.bc = min(triton.next_power_of_2(c), 128, TILE)
            self.bp = min(TILE // self.bc,
                          triton.next_power_of_2(self.pixels))
        dtype = accumulation_dtype(maps.dtype)
        self.dtype = dtype
        self.meta = dict(
            ACC=tl.float64 if dtype == torch.float64 else tl.float32,
            BC=self.bc,
            BP=self.bp,
            num_warps=WARPS)
        self.rows = n * triton.cdiv(c, self.bc)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.c, self.pixels

    @property
    def grid(self) -> tuple[int]:
        """One program for each tile."""
        return (self.rows * triton.cdiv(self.pixels, self.bp), )

    def spans(self) -> tuple[int, int]:
        """Number of splits of a map, and pixels of each."""
        tiles = triton.cdiv(self.pixels, self.bp)
        splits = max(1, min(PROGRAMS // self.rows, tiles))
        span = triton.cdiv(tiles, splits) * self.bp
        return triton.cdiv(self.pixels, span), span

    def partial(self, like: Tensor, splits: int) -> Tensor:
        return torch.empty((splits, self.n, self.c),
                           dtype=self.dtype,
                           device=like.device)


def _on_device_of_maps(function: Callable) -> Callable:
    """Launch where the first map lies: Triton takes the current device."""

    @wraps(function)
    def launch(maps: Tensor, *args, **kwargs):
        with torch.cuda.device_of(maps):
            return function(maps, *args, **kwargs)

    return launch


def spans(maps: Tensor) -> tuple[int, int]:
    """See :func:`mmstepnet.steps.kernels.plain.spans`."""
    launch = _Launch(maps)
    return launch.pixels, launch.spans()[1]


@_on_device_of_maps
def total(x: Tensor) -> Tensor:
    """See :func:`mmstepnet.steps.kernels.plain.total`."""
    launch = _Launch(x)
    splits, span = launch.spans()
    sums = launch.partial(x, splits)
    total_kernel[launch.rows, splits](x, sums, *launch.shape,
                                      launch.n * launch.c, *launch.strides,
                                      span, **launch.meta)
    return sums


@_on_device_of_maps
def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """See :func:`mmstepnet.steps.kernels.plain.moments`."""
    launch = _Launch(x)
    splits, span = launch.spans()
    means, squares = (launch.partial(x, splits) for _ in range(2))
    moments_kernel[launch.rows, splits](x, means, squares, *launch.shape,
                                        launch.n * launch.c, *launch.strides,
                                        span, **launch.meta)
    return means, squares


@_on_device_of_maps
def step(x: Tensor, c: Tensor, centre: Tensor | None, scale: Tensor,
         shift: Tensor | None, relu: bool) -> Tensor:
    """See :func:`mmstepnet.steps.kernels.plain.step`."""
    launch = _Launch(c)
    out = torch.empty_like(c)
    step_kernel[launch.grid](
        x, c, *_rows(scale, centre, scale, shift), out, *launch.shape,
        *launch.strides, CENTRE=centre is not None, SHIFT=shift is not None,
        RELU=relu, **launch.meta)
    return out


@_on_device_of_maps
def reduce(grad: Tensor, out: Tensor | None, c: Tensor,
           centre: Tensor | None) -> tuple[Tensor, Tensor]:
    """See :func:`mmstepnet.steps.kernels.plain.reduce`."""
    launch = _Launch(c)
    splits, span = launch.spans()
    sums, products = (launch.partial(c, splits) for _ in range(2))
    reduce_kernel[launch.rows, splits](
        grad, grad if out is None else out, c, *_rows(sums, centre), sums,
        products, *launch.shape, launch.n * launch.c, *launch.strides, span,
        CENTRE=centre is not None, RELU=out is not None, **launch.meta)
    return sums, products


@_on_device_of_maps
def gradients(
        grad: Tensor, out: Tensor | None, c: Tensor, centre: Tensor | None,
        scale: Tensor, slope: Tensor | None, offset: Tensor | None,
        x_offset: Tensor | None, needs_x: bool,
        needs_c: bool) -> tuple[Tensor | None, Tensor | None]:
    """See :func:`mmstepnet.steps.kernels.plain.gradients`."""
    launch = _Launch(grad)
    writes_x = needs_x and (out is not None or x_offset is not None)
    grad_x = grad if needs_x else None
    if writes_x:
        grad_x = torch.empty_like(grad)
    grad_c = torch.empty_like(grad) if needs_c else None
    if needs_c or writes_x:
        gradients_kernel[launch.grid](
            grad, grad if out is None else out, c,
            *_rows(scale, centre, scale, slope, offset, x_offset),
            grad if grad_x is None else grad_x,
            grad if grad_c is None else grad_c, *launch.shape,
            *launch.strides, RELU=out is not None, SLOPE=slope is not None,
            OFFSET=offset is not None, X_OFFSET=x_offset is not None,
            NEEDS_X=writes_x, NEEDS_C=needs_c, **launch.meta)
    return grad_x, grad_c


def _rows(like: Tensor, *coefficients: Tensor | None) -> list[Tensor]:
    """Dense (N, C) arguments; any pointer where a kernel reads none."""
    return [like if t is None else t.contiguous() for t in coefficients]

