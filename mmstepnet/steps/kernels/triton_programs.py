"""The Triton kernels of the fused residual step.

One kernel serves both memory formats: a tile is some channels by some pixels
of one image, addressed by strides, and Triton coalesces along the stride that
is 1. Arithmetic is in float32 (float64 for float64 maps), rounded once on the
way out.
"""

import triton
import triton.language as tl


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
def total_kernel(x_ptr, sum_ptr, C, HW, NC, n_stride, c_stride, p_stride,
                span, ACC: tl.constexpr, BC: tl.constexpr, BP: tl.constexpr):
    """Sums over pixels, of each split of a map."""
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
def moments_kernel(x_ptr, mean_ptr, square_ptr, C, HW, NC, n_stride,
                   c_stride, p_stride, span, ACC: tl.constexpr,
                   BC: tl.constexpr, BP: tl.constexpr):
    """Mean and sum of squared deviations, of each split of a map."""
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
def step_kernel(x_ptr, c_ptr, centre_ptr, scale_ptr, shift_ptr, out_ptr, C,
                HW, n_stride, c_stride, p_stride, CENTRE: tl.constexpr,
                SHIFT: tl.constexpr, RELU: tl.constexpr, ACC: tl.constexpr,
                BC: tl.constexpr, BP: tl.constexpr):
    """The step and its activation: ``plain.step``."""
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
def reduce_kernel(grad_ptr, out_ptr, c_ptr, centre_ptr, sum_ptr,
                  product_ptr, C, HW, NC, n_stride, c_stride, p_stride, span,
                  CENTRE: tl.constexpr, RELU: tl.constexpr,
                  ACC: tl.constexpr, BC: tl.constexpr, BP: tl.constexpr):
    """Sums of the gradient, alone and times f, of each split."""
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
def gradients_kernel(grad_ptr, out_ptr, c_ptr, centre_ptr, scale_ptr,
                     slope_ptr, offset_ptr, x_offset_ptr, grad_x_ptr,
                     grad_c_ptr, C, HW, n_stride, c_stride, p_stride,
                     RELU: tl.constexpr, SLOPE: tl.constexpr,
                     OFFSET: tl.constexpr, X_OFFSET: tl.constexpr,
                     NEEDS_X: tl.constexpr, NEEDS_C: tl.constexpr,
                     ACC: tl.constexpr, BC: tl.constexpr,
                     BP: tl.constexpr):
    """The gradients of both maps: ``plain.gradients``."""
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
