"""The Triton kernels of the fused residual step: three a direction.

Maps are (N, C, S) with S pixels, or in channels_last (N, S, C). One kernel
serves both formats: a tile is BC channels by BP pixels of an image.
Arithmetic is in float32, rounded once on the way out. No size is a constant,
so that a new one compiles nothing; of the dimension that is dense in memory
the compiler is told that VEC divides it, and so how wide it may load. Wide
loads of STAGES tiles are under way at once. Offsets of images are 64 bits
wide; inside a tile 32 are enough and cost half the registers.

What the letters mean, and the mathematics, is in :mod:`.function`. What the
kernels hand on lies in these buffers of float32:

- ``partial``, (3, splits, N, C) or (2, splits, N, C): sums of splits of the
  maps' pixels. The offsets of dc and dx, (N, C), come in the place of the
  latter, and behind them slope and what belongs to the offset, (C,);
- ``kept``: X, M - μ, ẑ and Δt, (N, C) each, then κ, μ - κ, r, a, β and ρ,
  (C,) each.

κ is the median of three values of the channel, or its running mean where that
is taken. Sums are of c - κ, a difference without rounding, or nearly: a mean
of a thousand deviations costs no digits, and squares about κ lose as few as
there are between κ and the mean, which is no further away than a deviation or
two. Sums are formed in each place of a tile; over these, once at the end.
"""

from inspect import signature

import triton
import triton.language as tl
from triton.language import constexpr

MAPS = {f'{name}_ptr' for name in (
    'x', 'c', 'out', 'grad', 'd_x', 'd_c', 'partial', 'kept')}
"""Maps and buffers, whose alignment decides how wide a kernel may load."""


def kernel(function):
    """Compile a function, which specialises on :data:`MAPS` alone.

    Not on sizes, numbers and other pointers.
    """
    others = [name for name, p in signature(function).parameters.items()
              if p.annotation is not constexpr and name not in MAPS]
    return triton.jit(do_not_specialize=others)(function)


@triton.jit
def _load(ptr, offsets, mask):
    return tl.load(ptr + offsets, mask, 0.0).to(tl.float32)


@triton.jit
def _block(N, C, S, LAST: constexpr, VEC: constexpr, BC: constexpr):
    """What a program works on.

    C and S, one of which the compiler now knows VEC to divide, and N C; its
    image, its first channel, all its channels and which of these exist.
    """
    if LAST:
        C = C // VEC * VEC
    else:
        S = S // VEC * VEC
    block, blocks = tl.program_id(0), tl.cdiv(C, BC)
    first, image = block % blocks * BC, (block // blocks).to(tl.int64)
    c = first + tl.arange(0, BC)
    return C, S, N.to(tl.int64) * C, image, first, c, c < C


@triton.jit
def _tile(image, first, exists, tile, C, S, LAST: constexpr,
          BC: constexpr, BP: constexpr):
    """A tile's place, those of its elements, (BC, BP), and which exist."""
    c, p = tl.arange(0, BC)[:, None], tl.arange(0, BP)[None, :]
    mask = exists[:, None] & (tile * BP + p < S)
    if LAST:
        return (image * S + tile * BP) * C + first, p * C + c, mask
    return (image * C + first) * S + tile * BP, c * S + p, mask


@triton.jit
def _kappa(c_ptr, mean_ptr, N, C, S, c, exists, BATCH: constexpr,
           LAST: constexpr):
    """The median of three values far from each other, or the running mean."""
    if not BATCH:
        return _load(mean_ptr, c, exists)
    c = c if LAST else c.to(tl.int64) * S
    by_pixel, image = C if LAST else 1, C.to(tl.int64) * S
    a = _load(c_ptr, c, exists)
    b = _load(c_ptr + (N // 2) * image + (S // 2) * by_pixel, c, exists)
    d = _load(c_ptr + N * image - image + (S - 1) * by_pixel, c, exists)
    return tl.maximum(tl.minimum(a, b), tl.minimum(tl.maximum(a, b), d))


@triton.jit
def _kept(kept_ptr, NC, C, image, c, exists):
    """κ, μ - κ, the scale and the shift of a program's channels, (BC, 1)."""
    rows_ptr = kept_ptr + 4 * NC
    step = _load(kept_ptr + 3 * NC, image * C + c, exists)
    scale = _load(rows_ptr + 3 * C, c, exists) * step
    shift = _load(rows_ptr + 4 * C, c, exists) * step
    kappa, rest = _load(rows_ptr, c, exists), _load(rows_ptr + C, c, exists)
    return kappa[:, None], rest[:, None], scale[:, None], shift[:, None]


@triton.jit
def _add_three(a, b, c, d, e, f):
    return a + d, b + e, c + f


@kernel
def pool_kernel(x_ptr, c_ptr, mean_ptr, partial_ptr, kept_ptr, N, C, S, span,
                BATCH: constexpr, LAST: constexpr, VEC: constexpr,
                STAGES: constexpr, BC: constexpr, BP: constexpr):
    """Σ x, Σ (c - κ) and Σ (c - κ)², of each split of ``span`` tiles."""
    C, S, NC, image, first, c, exists = _block(N, C, S, LAST, VEC, BC)
    split = tl.program_id(1)
    kappa = _kappa(c_ptr, mean_ptr, N, C, S, c, exists, BATCH, LAST)
    if (image == 0) & (split == 0):
        tl.store(kept_ptr + 4 * NC + c, kappa, exists)
    total = tl.zeros([BC, BP], tl.float32)
    mean, square = total, total
    for tile in tl.range(split * span, (split + 1) * span, num_stages=STAGES):
        begin, at, mask = _tile(image, first, exists, tile, C, S, LAST, BC, BP)
        total += _load(x_ptr + begin, at, mask)
        away = _load(c_ptr + begin, at, mask) - kappa[:, None]
        away = tl.where(mask, away, 0.0)
        mean += away
        square += away * away
    total, mean, square = tl.reduce((total, mean, square), 1, _add_three)
    at, part = split * NC + image * C + c, tl.num_programs(1) * NC
    tl.store(partial_ptr + at, total, exists)
    tl.store(partial_ptr + part + at, mean, exists)
    tl.store(partial_ptr + 2 * part + at, square, exists)


@kernel
def write_kernel(x_ptr, c_ptr, out_ptr, kept_ptr, N, C, S, span,
                 RELU: constexpr, LAST: constexpr, VEC: constexpr,
                 STAGES: constexpr, BC: constexpr, BP: constexpr):
    """relu(x + f Δt) with f = (c - μ) a + β."""
    C, S, NC, image, first, c, exists = _block(N, C, S, LAST, VEC, BC)
    kappa, rest, scale, shift = _kept(kept_ptr, NC, C, image, c, exists)
    start = tl.program_id(1) * span
    for tile in tl.range(start, start + span, num_stages=STAGES):
        begin, at, mask = _tile(image, first, exists, tile, C, S, LAST, BC, BP)
        centred = _load(c_ptr + begin, at, mask) - kappa - rest
        out = _load(x_ptr + begin, at, mask) + shift + centred * scale
        if RELU:
            # Not a maximum, which may lose a NaN.
            out = tl.where(out < 0, 0.0, out)
        tl.store(out_ptr + begin + at, out, mask)


@triton.jit
def _masked(grad_ptr, out_ptr, at, mask, RELU: constexpr):
    grad = _load(grad_ptr, at, mask)
    if RELU:
        grad = tl.where(_load(out_ptr, at, mask) <= 0, 0.0, grad)
    return grad


@kernel
def reduce_kernel(grad_ptr, out_ptr, c_ptr, kept_ptr, partial_ptr, N, C, S,
                  span, RELU: constexpr, LAST: constexpr, VEC: constexpr,
                  STAGES: constexpr, BC: constexpr, BP: constexpr):
    """G = Σ g and P = Σ g (c - μ), of each split of ``span`` tiles."""
    C, S, NC, image, first, c, exists = _block(N, C, S, LAST, VEC, BC)
    split = tl.program_id(1)
    kappa, rest, _, _ = _kept(kept_ptr, NC, C, image, c, exists)
    total = tl.zeros([BC, BP], tl.float32)
    product = total
    for tile in tl.range(split * span, (split + 1) * span, num_stages=STAGES):
        begin, at, mask = _tile(image, first, exists, tile, C, S, LAST, BC, BP)
        grad = _masked(grad_ptr + begin, out_ptr + begin, at, mask, RELU)
        total += grad
        product += grad * (_load(c_ptr + begin, at, mask) - kappa - rest)
    at, part = split * NC + image * C + c, tl.num_programs(1) * NC
    tl.store(partial_ptr + at, tl.sum(total, 1), exists)
    tl.store(partial_ptr + part + at, tl.sum(product, 1), exists)


@kernel
def write_gradients_kernel(
        grad_ptr, out_ptr, c_ptr, d_x_ptr, d_c_ptr, kept_ptr, partial_ptr,
        N, C, S, span, BATCH: constexpr, RELU: constexpr, LAST: constexpr,
        VEC: constexpr, STAGES: constexpr, BC: constexpr, BP: constexpr):
    """Write dx = g + x_offset and dc = g scale + (c - μ) slope + offset."""
    C, S, NC, image, first, c, exists = _block(N, C, S, LAST, VEC, BC)
    kappa, rest, scale, _ = _kept(kept_ptr, NC, C, image, c, exists)
    row, part = image * C + c, tl.num_programs(1) * NC
    offset = _load(partial_ptr, row, exists)
    x_offset = _load(partial_ptr + part, row, exists)
    if BATCH:
        slope = _load(partial_ptr + 2 * part, c, exists)
        offset += _load(partial_ptr + 2 * part + C, c, exists)
    start = tl.program_id(1) * span
    for tile in tl.range(start, start + span, num_stages=STAGES):
        begin, at, mask = _tile(image, first, exists, tile, C, S, LAST, BC, BP)
        grad = _masked(grad_ptr + begin, out_ptr + begin, at, mask, RELU)
        d_c = grad * scale + offset[:, None]
        if BATCH:
            centred = _load(c_ptr + begin, at, mask) - kappa - rest
            d_c += centred * slope[:, None]
        tl.store(d_c_ptr + begin + at, d_c, mask)
        tl.store(d_x_ptr + begin + at, grad + x_offset[:, None], mask)


@triton.jit
def _images(first, N, C, c, BN: constexpr):
    """Places of a chunk of images in (N, C), and which of them exist."""
    n = first + tl.arange(0, BN)[:, None]
    return n.to(tl.int64) * C + c[None, :], (n < N) & (c < C)[None, :]


@triton.jit
def _normalise(mean, square, count, eps, mean_ptr, var_ptr, count_ptr,
               momentum, c, exists, BATCH: constexpr):
    """Mean and 1/deviation that a BN takes; it updates its running ones."""
    var = square / count
    if not BATCH:
        mean, var = _load(mean_ptr, c, exists), _load(var_ptr, c, exists)
    elif count_ptr is not None:
        old, moved = _load(mean_ptr, c, exists), square / (count - 1)
        tl.store(mean_ptr + c, old + momentum * (mean - old), exists)
        old = _load(var_ptr, c, exists)
        tl.store(var_ptr + c, old + momentum * (moved - old), exists)
        if tl.program_id(0) == 0:
            tl.store(count_ptr, tl.load(count_ptr) + 1)
    return mean, tl.rsqrt(var + eps)


@kernel
def vectors_kernel(
        partial_ptr, kept_ptr, weight_ptr, bias_ptr, pair_ptr,
        gate_weight_ptr, gate_bias_ptr, ie_weight_ptr, ie_bias_ptr,
        norm_mean_ptr, norm_var_ptr, norm_count_ptr, gate_mean_ptr,
        gate_var_ptr, gate_count_ptr, N, C, S, splits, norm_eps, norm_momentum,
        gate_eps, gate_momentum, k, NORM: constexpr, GATE: constexpr,
        BN: constexpr, BC: constexpr):
    """What lies between the forward's passes over the maps.

    NORM, GATE: whether they normalise by the batch's statistics.
    """
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    exists, NC = c < C, N.to(tl.int64) * C
    f_ptr, z_ptr = kept_ptr + NC, kept_ptr + 2 * NC
    rows_ptr = kept_ptr + 4 * NC
    x_mean = tl.zeros([BC], tl.float32)
    mean, square = x_mean, x_mean
    for first in range(0, N, BN):
        at, mask = _images(first, N, C, c, BN)
        x = tl.zeros([BN, BC], tl.float32)
        away, squares = x, x
        for split in range(splits):
            part = split * NC + at
            x += _load(partial_ptr, part, mask)
            away += _load(partial_ptr + splits * NC, part, mask)
            squares += _load(partial_ptr + 2 * splits * NC, part, mask)
        tl.store(kept_ptr + at, x / S, mask)
        tl.store(f_ptr + at, away / S, mask)
        x_mean += tl.sum(x, 0)
        mean += tl.sum(away, 0)
        square += tl.sum(squares, 0)
    images, count = N.to(tl.float32), N.to(tl.float32) * S
    x_mean /= count
    mean /= count
    square -= mean * mean * count
    square = tl.where(square < 0, 0.0, square)  # keeps a NaN
    _mu, rstd = _normalise(_load(rows_ptr, c, exists) + mean, square, count,
                           norm_eps, norm_mean_ptr, norm_var_ptr,
                           norm_count_ptr, norm_momentum, c, exists, NORM)
    rest = mean if NORM else tl.zeros([BC], tl.float32)  # then κ is μ
    bias = _load(bias_ptr, c, exists)
    a = _load(weight_ptr, c, exists) * rstd
    tl.store(rows_ptr + C + c, rest, exists)
    tl.store(rows_ptr + 2 * C + c, rstd, exists)
    tl.store(rows_ptr + 3 * C + c, a, exists)
    tl.store(rows_ptr + 4 * C + c, bias, exists)
    tl.debug_barrier()  # the stores above are read again

    w0, w1 = _load(pair_ptr, 2 * c, exists), _load(pair_ptr, 2 * c + 1, exists)
    z_mean = w0 * x_mean + w1 * (x_mean + (mean - rest) * a + bias)
    square = tl.zeros([BC], tl.float32)
    for first in range(0, N, BN):
        at, mask = _images(first, N, C, c, BN)
        x, centred = _load(kept_ptr, at, mask), _load(f_ptr, at, mask) - rest
        z = w0 * x + w1 * (x + centred * a + bias)
        tl.store(f_ptr + at, centred, mask)
        tl.store(z_ptr + at, z, mask)
        away = tl.where(mask, z - z_mean, 0.0)
        square += tl.sum(away * away, 0)
    z_mean, z_rstd = _normalise(z_mean, square, images, gate_eps,
                                gate_mean_ptr, gate_var_ptr, gate_count_ptr,
                                gate_momentum, c, exists, GATE)
    tl.store(rows_ptr + 5 * C + c, z_rstd, exists)
    tl.debug_barrier()

    ie_weight = _load(ie_weight_ptr, c, exists)
    slope = ie_weight * _load(gate_weight_ptr, c, exists)
    offset = ie_weight * _load(gate_bias_ptr, c, exists)
    offset += _load(ie_bias_ptr, c, exists)
    for first in range(0, N, BN):
        at, mask = _images(first, N, C, c, BN)
        z = (_load(z_ptr, at, mask) - z_mean) * z_rstd
        tl.store(z_ptr + at, z, mask)
        tl.store(z_ptr + NC + at, k * tl.sigmoid(z * slope + offset), mask)


@kernel
def vectors_gradients_kernel(
        partial_ptr, kept_ptr, pair_ptr, gate_weight_ptr, gate_bias_ptr,
        ie_weight_ptr, d_weight_ptr, d_bias_ptr, d_pair_ptr,
        d_gate_weight_ptr, d_gate_bias_ptr, d_ie_weight_ptr, d_ie_bias_ptr,
        N, C, S, splits, k, NORM: constexpr, GATE: constexpr, BN: constexpr,
        BC: constexpr):
    """What lies between the backward's passes over the maps."""
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    exists, NC = c < C, N.to(tl.int64) * C
    f_ptr, z_ptr = kept_ptr + NC, kept_ptr + 2 * NC
    rows_ptr, other_ptr = kept_ptr + 4 * NC, partial_ptr + splits * NC
    rstd = _load(rows_ptr + 2 * C, c, exists)
    a = _load(rows_ptr + 3 * C, c, exists)
    bias = _load(rows_ptr + 4 * C, c, exists)
    d_a = tl.zeros([BC], tl.float32)
    d_bias, d_ie_bias, by_z = d_a, d_a, d_a
    for first in range(0, N, BN):
        at, mask = _images(first, N, C, c, BN)
        total = tl.zeros([BN, BC], tl.float32)
        product = total
        for split in range(splits):
            total += _load(partial_ptr, split * NC + at, mask)
            product += _load(other_ptr, split * NC + at, mask)
        step = _load(z_ptr + NC, at, mask)
        d_logits = (product * a + total * bias) * step * (1 - step / k)
        tl.store(partial_ptr + at, d_logits, mask)
        d_a += tl.sum(product * step, 0)
        d_bias += tl.sum(total * step, 0)
        d_ie_bias += tl.sum(d_logits, 0)
        by_z += tl.sum(d_logits * _load(z_ptr, at, mask), 0)
    tl.debug_barrier()  # the stores above are read again

    gate_weight = _load(gate_weight_ptr, c, exists)
    ie_weight = _load(ie_weight_ptr, c, exists)
    slope = gate_weight * ie_weight * _load(rows_ptr + 5 * C, c, exists)
    w0, w1 = _load(pair_ptr, 2 * c, exists), _load(pair_ptr, 2 * c + 1, exists)
    d_w0 = tl.zeros([BC], tl.float32)
    d_w1 = d_w0
    for first in range(0, N, BN):
        at, mask = _images(first, N, C, c, BN)
        x, centred = _load(kept_ptr, at, mask), _load(f_ptr, at, mask)
        d_z = _load(partial_ptr, at, mask)
        if GATE:
            d_z -= (d_ie_bias + _load(z_ptr, at, mask) * by_z) / N
        d_z = tl.where(mask, d_z * slope, 0.0)
        d_f = d_z * w1
        d_w0 += tl.sum(d_z * x, 0)
        d_w1 += tl.sum(d_z * (x + centred * a + bias), 0)
        d_a += tl.sum(d_f * centred, 0)
        d_bias += tl.sum(d_f, 0)
        tl.store(partial_ptr + at, d_f * a / S, mask)
        tl.store(other_ptr + at, d_z * (w0 + w1) / S, mask)
    d_weight = d_a * rstd
    if NORM:
        count = N.to(tl.float32) * S
        slope_ptr = other_ptr + splits * NC
        tl.store(slope_ptr + c, -d_weight * a * rstd / count, exists)
        tl.store(slope_ptr + C + c, -d_bias * a / count, exists)
    tl.store(d_weight_ptr + c, d_weight, exists)
    tl.store(d_bias_ptr + c, d_bias, exists)
    tl.store(d_pair_ptr + 2 * c, d_w0, exists)
    tl.store(d_pair_ptr + 2 * c + 1, d_w1, exists)
    tl.store(d_gate_weight_ptr + c, by_z * ie_weight, exists)
    tl.store(d_gate_bias_ptr + c, d_ie_bias * ie_weight, exists)
    d_ie_weight = by_z * gate_weight
    d_ie_weight += d_ie_bias * _load(gate_bias_ptr, c, exists)
    tl.store(d_ie_weight_ptr + c, d_ie_weight, exists)
    tl.store(d_ie_bias_ptr + c, d_ie_bias, exists)
