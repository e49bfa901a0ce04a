"""The fused residual step's passes over memory, as Triton kernels.

The functions are those of :mod:`.plain`. One kernel serves both
memory formats: a tile is some channels by some pixels of one image, addressed
by strides, and Triton coalesces along the stride that is 1. Arithmetic is in
float32 (float64 for float64 maps), rounded once on the way out.
"""

from collections.abc import Callable
from functools import wraps

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmstepnet.precision import accumulation_dtype

TILE = 4096
"""Elements of a tile."""

WARPS = 8
"""Warps of a program: with 4, a tile of scalar loads spills registers."""

PROGRAMS = 1024
"""Programs that keep a large GPU busy; reductions split maps to get there."""


@triton.jit
def _channels(block, C, n_stride, BC: tl.constexpr):
    """A block's image and channels, their place in (N, C) and mask."""
    c_blocks = tl.cdiv(C, BC)
    n = block // c_blocks
    c = (block % c_blocks) * BC + tl.arange(0, BC)
    # A batch may pass 2^31 elements; inside an image 32 bits are enough and
    # cost half the registers.
    return n.to(tl.int64) * n_stride, c, n * C + c, c < C


@triton.jit
def _tile(c, row_mask, last, c_stride, p_stride, start, BP: tl.constexpr):
    """Offsets into an image from a pixel on, and which of them exist."""
    p = start + tl.arange(0, BP)
    offsets = c[:, None] * c_stride + p[None, :] * p_stride
    return offsets, row_mask[:, None] & (p < last)[None, :]


@triton.jit
def _total_kernel(x_ptr, sum_ptr, C, HW, NC, n_stride, c_stride, p_stride,
                 span, ACC: tl.constexpr, BC: tl.constexpr, BP: tl.constexpr):
    first = tl.program_id(1) * span
    last = tl.minimum(first + span, HW)
    total = tl.zeros([BC], ACC)
    image, c, row, row_mask = _channels(tl.program_id(0), C, n_stride, BC)
    for start in range(first, last, BP):
        offsets, mask = _tile(c, row_mask, last, c_stride, p_stride, start,
                              BP)
        total += tl.sum(tl.load(x_ptr + image + offsets, mask, 0.0).to(ACC), 1)
    tl.store(sum_ptr + tl.program_id(1) * NC + row, total, row_mask)


@triton.jit
def _moments_kernel(x_ptr, mean_ptr, square_ptr, C, HW, NC, n_stride,
                    c_stride, p_stride, span, ACC: tl.constexpr,
                    BC: tl.constexpr, BP: tl.constexpr):
    first = tl.program_id(1) * span
    last = tl.minimum(first + span, HW)
    mean = tl.zeros([BC], ACC)
    square = tl.zeros([BC], ACC)
    image, c, row, row_mask = _channels(tl.program_id(0), C, n_stride, BC)
    for start in range(first, last, BP):
        offsets, mask = _tile(c, row_mask, last, c_stride, p_stride, start,
                              BP)
        x = tl.load(x_ptr + image + offsets, mask, 0.0).to(ACC)
        # Chan et al.: join the moments so far and those of this tile.
        before = (start - first).to(ACC)
        here = tl.minimum(last - start, BP).to(ACC)
        tile_mean = tl.sum(x, 1) / here
        deviation = tl.where(mask, x - tile_mean[:, None], 0.0)
        delta = tile_mean - mean
        share = here / (before + here)
        mean += delta * share
        square += tl.sum(deviation * deviation, 1)
        square += delta * delta * before * share
    tl.store(mean_ptr + tl.program_id(1) * NC + row, mean, row_mask)
    tl.store(square_ptr + tl.program_id(1) * NC + row, square, row_mask)


@triton.jit
def _step_kernel(x_ptr, c_ptr, centre_ptr, scale_ptr, shift_ptr, out_ptr, C,
                 HW, n_stride, c_stride, p_stride, CENTRE: tl.constexpr,
                 SHIFT: tl.constexpr, RELU: tl.constexpr, ACC: tl.constexpr,
                 BC: tl.constexpr, BP: tl.constexpr):
    # One axis: a grid's others end at 65,535.
    p_blocks = tl.cdiv(HW, BP)
    image, c, row, row_mask = _channels(tl.program_id(0) // p_blocks, C,
                                        n_stride, BC)
    offsets, mask = _tile(c, row_mask, HW, c_stride, p_stride,
                          (tl.program_id(0) % p_blocks) * BP, BP)
    total = tl.load(c_ptr + image + offsets, mask, 0.0).to(ACC)
    if CENTRE:
        total -= tl.load(centre_ptr + c, row_mask, 0.0)[:, None]
    total *= tl.load(scale_ptr + row, row_mask, 0.0)[:, None]
    if SHIFT:
        total += tl.load(shift_ptr + row, row_mask, 0.0)[:, None]
    total += tl.load(x_ptr + image + offsets, mask, 0.0).to(ACC)
    if RELU:
        # Not a maximum, which may lose a NaN.
        total = tl.where(total < 0, 0.0, total)
    tl.store(out_ptr + image + offsets, total.to(out_ptr.dtype.element_ty),
             mask)


@triton.jit
def _reduce_kernel(grad_ptr, out_ptr, c_ptr, centre_ptr, sum_ptr,
                   product_ptr, C, HW, NC, n_stride, c_stride, p_stride, span,
                   CENTRE: tl.constexpr, RELU: tl.constexpr,
                   ACC: tl.constexpr, BC: tl.constexpr, BP: tl.constexpr):
    first = tl.program_id(1) * span
    last = tl.minimum(first + span, HW)
    total = tl.zeros([BC], ACC)
    product = tl.zeros([BC], ACC)
    image, c, row, row_mask = _channels(tl.program_id(0), C, n_stride, BC)
    for start in range(first, last, BP):
        offsets, mask = _tile(c, row_mask, last, c_stride, p_stride, start,
                              BP)
        grad = tl.load(grad_ptr + image + offsets, mask, 0.0)
        if RELU:
            out = tl.load(out_ptr + image + offsets, mask, 0.0)
            grad = tl.where(out <= 0, 0.0, grad)
        grad = grad.to(ACC)
        deviation = tl.load(c_ptr + image + offsets, mask, 0.0).to(ACC)
        if CENTRE:
            deviation -= tl.load(centre_ptr + c, row_mask, 0.0)[:, None]
        total += tl.sum(grad, 1)
        product += tl.sum(grad * deviation, 1)
    tl.store(sum_ptr + tl.program_id(1) * NC + row, total, row_mask)
    tl.store(product_ptr + tl.program_id(1) * NC + row, product, row_mask)


@triton.jit
def _gradients_kernel(grad_ptr, out_ptr, c_ptr, centre_ptr, scale_ptr,
                      slope_ptr, offset_ptr, x_offset_ptr, grad_x_ptr,
                      grad_c_ptr, C, HW, n_stride, c_stride, p_stride,
                      RELU: tl.constexpr, SLOPE: tl.constexpr,
                      OFFSET: tl.constexpr, X_OFFSET: tl.constexpr,
                      NEEDS_X: tl.constexpr, NEEDS_C: tl.constexpr,
                      ACC: tl.constexpr, BC: tl.constexpr,
                      BP: tl.constexpr):
    # One axis: a grid's others end at 65,535.
    p_blocks = tl.cdiv(HW, BP)
    image, c, row, row_mask = _channels(tl.program_id(0) // p_blocks, C,
                                        n_stride, BC)
    offsets, mask = _tile(c, row_mask, HW, c_stride, p_stride,
                          (tl.program_id(0) % p_blocks) * BP, BP)
    grad = tl.load(grad_ptr + image + offsets, mask, 0.0)
    if RELU:
        out = tl.load(out_ptr + image + offsets, mask, 0.0)
        grad = tl.where(out <= 0, 0.0, grad)
    grad = grad.to(ACC)
    if NEEDS_C:
        total = grad * tl.load(scale_ptr + row, row_mask, 0.0)[:, None]
        if SLOPE:
            deviation = tl.load(c_ptr + image + offsets, mask, 0.0).to(ACC)
            deviation -= tl.load(centre_ptr + row, row_mask, 0.0)[:, None]
            deviation *= tl.load(slope_ptr + row, row_mask, 0.0)[:, None]
            total += deviation
        if OFFSET:
            total += tl.load(offset_ptr + row, row_mask, 0.0)[:, None]
        tl.store(grad_c_ptr + image + offsets,
                 total.to(grad_c_ptr.dtype.element_ty), mask)
    if NEEDS_X:
        if X_OFFSET:
            grad += tl.load(x_offset_ptr + row, row_mask, 0.0)[:, None]
        tl.store(grad_x_ptr + image + offsets,
                 grad.to(grad_x_ptr.dtype.element_ty), mask)


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
    _total_kernel[launch.rows, splits](x, sums, *launch.shape,
                                       launch.n * launch.c, *launch.strides,
                                       span, **launch.meta)
    return sums


@_on_device_of_maps
def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """See :func:`mmstepnet.steps.kernels.plain.moments`."""
    launch = _Launch(x)
    splits, span = launch.spans()
    means, squares = (launch.partial(x, splits) for _ in range(2))
    _moments_kernel[launch.rows, splits](x, means, squares, *launch.shape,
                                         launch.n * launch.c, *launch.strides,
                                         span, **launch.meta)
    return means, squares


@_on_device_of_maps
def step(x: Tensor, c: Tensor, centre: Tensor | None, scale: Tensor,
         shift: Tensor | None, relu: bool, in_place: bool = False) -> Tensor:
    """See :func:`mmstepnet.steps.kernels.plain.step`."""
    launch = _Launch(c)
    out = c if in_place else torch.empty_like(c)
    _step_kernel[launch.grid](
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
    _reduce_kernel[launch.rows, splits](
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
        _gradients_kernel[launch.grid](
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

