"""The Triton kernels of the fused residual step: three a direction.

Maps are (N, C, S) with S pixels, or in channels_last (N, S, C); vectors are
(N, C) or (C,). One kernel serves both formats: a tile is BC channels by BP
pixels of an image. Arithmetic is in float32, rounded once on the way out. No
size is a constant, so that a new one compiles nothing. Of the dimension that
is dense in memory a kernel is given the number of VEC-tuples, which tells the
compiler how wide it may load. Offsets of images are 64 bits wide; inside a
tile 32 are enough and cost half the registers.

What the letters mean, and the mathematics, is in :mod:`.formulas`. ``kept``
holds X and M, (N, C) each, then μ, r, m and ρ, (C,) each; ``vectors`` scale
and shift, backward scale, offset and that of x, (N, C) each; ``rows`` slope
and what belongs to the offset, then the parameters' gradients, (C,) each.
"""

import triton
import triton.language as tl


@triton.jit
def _sizes(C, S, LAST: tl.constexpr, VEC: tl.constexpr):
    return (C * VEC, S) if LAST else (C, S * VEC)


@triton.jit
def _block(block, C, BC: tl.constexpr):
    """A block's image, first channel, channels and which of them exist."""
    blocks = tl.cdiv(C, BC)
    first = (block % blocks) * BC
    c = first + tl.arange(0, BC)
    return (block // blocks).to(tl.int64), first, c, c < C


@triton.jit
def _tile(image, channel, tile, mask, C, S, LAST: tl.constexpr,
          BC: tl.constexpr, BP: tl.constexpr):
    """Offsets of a tile, (BC, BP), and which of it exists."""
    c, p = tl.arange(0, BC)[:, None], tl.arange(0, BP)[None, :]
    mask = mask[:, None] & (tile * BP + p < S)
    if LAST:
        start = (image * S + tile * BP) * C + channel
        return start + (p * C + c), mask
    return (image * C + channel) * S + tile * BP + (c * S + p), mask


@triton.jit
def _load(ptr, offsets, mask):
    return tl.load(ptr + offsets, mask, 0.0).to(tl.float32)


@triton.jit
def _join(mean, square, seen, new_mean, new_square, here):
    """Moments of two sets of numbers together (Chan et al., 1979)."""
    delta = new_mean - mean
    share = here / (seen + here)
    return (mean + delta * share,
            square + new_square + delta * delta * seen * share)


@triton.jit
def _rows(image, c, N, C):
    """Places of a split's sums, and their number: (splits, N, C)."""
    all_rows = tl.num_programs(1).to(tl.int64) * N * C
    return (tl.program_id(1).to(tl.int64) * N + image) * C + c, all_rows


@triton.jit
def pool_kernel(x_ptr, c_ptr, partial_ptr, N, C, S, span,
                MOMENTS: tl.constexpr, LAST: tl.constexpr, VEC: tl.constexpr,
                BC: tl.constexpr, BP: tl.constexpr):
    """Σ x, mean of c and Σ (c - mean)², of each split of ``span`` tiles."""
    C, S = _sizes(C, S, LAST, VEC)
    image, first, c, exists = _block(tl.program_id(0), C, BC)
    total = tl.zeros([BC], tl.float32)
    mean = tl.zeros([BC], tl.float32)
    square = tl.zeros([BC], tl.float32)
    begin = tl.program_id(1) * span
    for tile in range(begin, tl.minimum(begin + span, tl.cdiv(S, BP))):
        offsets, mask = _tile(image, first, tile, exists, C, S, LAST, BC, BP)
        total += tl.sum(_load(x_ptr, offsets, mask), 1)
        maps = _load(c_ptr, offsets, mask)
        here = tl.minimum(S - tile * BP, BP).to(tl.float32)
        new = tl.sum(maps, 1) / here
        deviation = tl.where(mask, maps - new[:, None], 0.0)
        mean, square = _join(mean, square,
                             ((tile - begin) * BP).to(tl.float32), new,
                             tl.sum(deviation * deviation, 1), here)
    row, all_rows = _rows(image, c, N, C)
    tl.store(partial_ptr + row, total, exists)
    tl.store(partial_ptr + all_rows + row, mean, exists)
    if MOMENTS:
        tl.store(partial_ptr + 2 * all_rows + row, square, exists)


@triton.jit
def write_kernel(x_ptr, c_ptr, out_ptr, vectors_ptr, kept_ptr, N, C, S,
                 NORM: tl.constexpr, RELU: tl.constexpr, LAST: tl.constexpr,
                 VEC: tl.constexpr, BC: tl.constexpr, BP: tl.constexpr):
    """relu(x + (c - μ) scale + shift)."""
    C, S = _sizes(C, S, LAST, VEC)
    tiles = tl.cdiv(S, BP)
    image, first, c, exists = _block(tl.program_id(0) // tiles, C, BC)
    offsets, mask = _tile(image, first, tl.program_id(0) % tiles, exists, C,
                          S, LAST, BC, BP)
    row, NC = image * C + c, N.to(tl.int64) * C
    total = _load(c_ptr, offsets, mask)
    if NORM:
        total -= _load(kept_ptr + 2 * NC, c, exists)[:, None]
    total *= _load(vectors_ptr, row, exists)[:, None]
    if NORM:
        total += _load(vectors_ptr + NC, row, exists)[:, None]
    total += _load(x_ptr, offsets, mask)
    if RELU:
        # Not a maximum, which may lose a NaN.
        total = tl.where(total < 0, 0.0, total)
    tl.store(out_ptr + offsets, total.to(out_ptr.dtype.element_ty), mask)


@triton.jit
def _masked(grad_ptr, out_ptr, offsets, mask, RELU: tl.constexpr):
    grad = _load(grad_ptr, offsets, mask)
    if RELU:
        grad = tl.where(_load(out_ptr, offsets, mask) <= 0, 0.0, grad)
    return grad


@triton.jit
def reduce_kernel(grad_ptr, out_ptr, c_ptr, kept_ptr, partial_ptr, N, C, S,
                  span, NORM: tl.constexpr, RELU: tl.constexpr,
                  LAST: tl.constexpr, VEC: tl.constexpr, BC: tl.constexpr,
                  BP: tl.constexpr):
    """G = Σ g and P = Σ g (c - μ), of each split of ``span`` tiles."""
    C, S = _sizes(C, S, LAST, VEC)
    image, first, c, exists = _block(tl.program_id(0), C, BC)
    centre = tl.zeros([BC], tl.float32)
    if NORM:
        centre = _load(kept_ptr + 2 * N.to(tl.int64) * C, c, exists)
    total = tl.zeros([BC], tl.float32)
    product = tl.zeros([BC], tl.float32)
    begin = tl.program_id(1) * span
    for tile in range(begin, tl.minimum(begin + span, tl.cdiv(S, BP))):
        offsets, mask = _tile(image, first, tile, exists, C, S, LAST, BC, BP)
        grad = _masked(grad_ptr, out_ptr, offsets, mask, RELU)
        total += tl.sum(grad, 1)
        product += tl.sum(
            grad * (_load(c_ptr, offsets, mask) - centre[:, None]), 1)
    row, all_rows = _rows(image, c, N, C)
    tl.store(partial_ptr + row, total, exists)
    tl.store(partial_ptr + all_rows + row, product, exists)


@triton.jit
def write_gradients_kernel(
        grad_ptr, out_ptr, c_ptr, d_x_ptr, d_c_ptr, kept_ptr, vectors_ptr,
        rows_ptr, N, C, S, BATCH: tl.constexpr, RELU: tl.constexpr,
        NEEDS_X: tl.constexpr, NEEDS_C: tl.constexpr, LAST: tl.constexpr,
        VEC: tl.constexpr, BC: tl.constexpr, BP: tl.constexpr):
    """Write dx = g + x_offset and dc = g scale + (c - μ) slope + offset."""
    C, S = _sizes(C, S, LAST, VEC)
    tiles = tl.cdiv(S, BP)
    image, first, c, exists = _block(tl.program_id(0) // tiles, C, BC)
    offsets, mask = _tile(image, first, tl.program_id(0) % tiles, exists, C,
                          S, LAST, BC, BP)
    row, NC = image * C + c, N.to(tl.int64) * C
    grad = _masked(grad_ptr, out_ptr, offsets, mask, RELU)
    if NEEDS_C:
        d_c = grad * _load(vectors_ptr, row, exists)[:, None]
        offset = _load(vectors_ptr + NC, row, exists)
        if BATCH:
            centre = _load(kept_ptr + 2 * NC, c, exists)[:, None]
            slope = _load(rows_ptr, c, exists)[:, None]
            d_c += (_load(c_ptr, offsets, mask) - centre) * slope
            offset += _load(rows_ptr + C, c, exists)
        d_c += offset[:, None]
        tl.store(d_c_ptr + offsets, d_c.to(d_c_ptr.dtype.element_ty), mask)
    if NEEDS_X:
        grad += _load(vectors_ptr + 2 * NC, row, exists)[:, None]
        tl.store(d_x_ptr + offsets, grad.to(d_x_ptr.dtype.element_ty), mask)


@triton.jit
def _images(first, N, C, c, exists, BN: tl.constexpr):
    """Offsets of a chunk of images, (BN, BC), and which of it exists."""
    n = first + tl.arange(0, BN)
    return (n.to(tl.int64)[:, None] * C + c[None, :],
            (n < N)[:, None] & exists[None, :])


@triton.jit
def _pooled(kept_ptr, at, mask, NC, a, beta, mu, NORM: tl.constexpr):
    """X, M - μ and F of a chunk of images."""
    x = _load(kept_ptr, at, mask)
    centred = _load(kept_ptr + NC, at, mask)
    f = centred
    if NORM:
        centred -= mu[None, :]
        f = centred * a[None, :] + beta[None, :]
    return x, centred, f


@triton.jit
def _update(mean_ptr, var_ptr, count_ptr, c, exists, mean, var, values,
            momentum):
    """Move running statistics towards the batch's, as BN does."""
    old = _load(mean_ptr, c, exists)
    tl.store(mean_ptr + c, (old + momentum * (mean - old)).to(
        mean_ptr.dtype.element_ty), exists)
    old = _load(var_ptr, c, exists)
    var = var * values / (values - 1)
    tl.store(var_ptr + c, (old + momentum * (var - old)).to(
        var_ptr.dtype.element_ty), exists)
    if tl.program_id(0) == 0:
        tl.store(count_ptr, tl.load(count_ptr) + 1)


@triton.jit
def vectors_kernel(
        partial_ptr, kept_ptr, vectors_ptr, weight_ptr, bias_ptr, pair_ptr,
        gate_weight_ptr, gate_bias_ptr, ie_weight_ptr, ie_bias_ptr,
        norm_mean_ptr, norm_var_ptr, norm_count_ptr, gate_mean_ptr,
        gate_var_ptr, gate_count_ptr, N, C, S, splits, span, norm_eps,
        norm_momentum, gate_eps, gate_momentum, gate_scale,
        NORM: tl.constexpr, GATE: tl.constexpr, MOVE_NORM: tl.constexpr,
        MOVE_GATE: tl.constexpr, BN: tl.constexpr, BC: tl.constexpr):
    """:func:`.formulas.forward`. NORM, GATE: 0 none, 1 running, 2 batch."""
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    exists = c < C
    NC = N.to(tl.int64) * C
    statistics_ptr = kept_ptr + 2 * NC
    mu = tl.zeros([BC], tl.float32)
    var = tl.zeros([BC], tl.float32)
    for first in range(0, N, BN):
        at, mask = _images(first, N, C, c, exists, BN)
        x = tl.zeros([BN, BC], tl.float32)
        mean = tl.zeros([BN, BC], tl.float32)
        square = tl.zeros([BN, BC], tl.float32)
        for split in range(splits):
            part = split * NC + at
            x += _load(partial_ptr, part, mask)
            within = tl.zeros([BN, BC], tl.float32)
            if NORM == 2:
                within = _load(partial_ptr + 2 * splits * NC, part, mask)
            mean, square = _join(
                mean, square, (split * span).to(tl.float32),
                _load(partial_ptr + splits * NC, part, mask), within,
                tl.minimum(S - split * span, span).to(tl.float32))
        tl.store(kept_ptr + at, x / S, mask)
        tl.store(kept_ptr + NC + at, mean, mask)
        if NORM == 2:
            here = tl.minimum(N - first, BN).to(tl.float32)
            new = tl.sum(mean, 0) / here
            between = tl.where(mask, mean - new[None, :], 0.0)
            mu, var = _join(mu, var, first * 1.0, new, tl.sum(
                between * between + square / S, 0), here)
    tl.debug_barrier()  # the stores above are read again
    a, beta = mu, mu
    if NORM == 1:
        mu = _load(norm_mean_ptr, c, exists)
        var = _load(norm_var_ptr, c, exists)
    elif NORM == 2:
        var = var / N
    if NORM:
        rstd = tl.rsqrt(var + norm_eps)
        a = _load(weight_ptr, c, exists) * rstd
        beta = _load(bias_ptr, c, exists)
        tl.store(statistics_ptr + c, mu, exists)
        tl.store(statistics_ptr + C + c, rstd, exists)
    if MOVE_NORM:
        _update(norm_mean_ptr, norm_var_ptr, norm_count_ptr, c, exists, mu,
                var, N.to(tl.float32) * S, norm_momentum)

    w0 = _load(pair_ptr, 2 * c, exists)[None, :]
    w1 = _load(pair_ptr, 2 * c + 1, exists)[None, :]
    z_mean = tl.zeros([BC], tl.float32)
    z_var = tl.zeros([BC], tl.float32)
    if GATE == 1:
        z_mean = _load(gate_mean_ptr, c, exists)
        z_var = _load(gate_var_ptr, c, exists)
    elif GATE == 2:
        for first in range(0, N, BN):
            at, mask = _images(first, N, C, c, exists, BN)
            x, _, f = _pooled(kept_ptr, at, mask, NC, a, beta, mu, NORM)
            z = tl.where(mask, w0 * x + w1 * (x + f), 0.0)
            here = tl.minimum(N - first, BN).to(tl.float32)
            new = tl.sum(z, 0) / here
            deviation = tl.where(mask, z - new[None, :], 0.0)
            z_mean, z_var = _join(
                z_mean, z_var, first * 1.0, new,
                tl.sum(deviation * deviation, 0), here)
        z_var = z_var / N
    slope = tl.zeros([BC], tl.float32) + 1
    offset = _load(ie_bias_ptr, c, exists)
    if GATE:
        rstd = tl.rsqrt(z_var + gate_eps)
        tl.store(statistics_ptr + 2 * C + c, z_mean, exists)
        tl.store(statistics_ptr + 3 * C + c, rstd, exists)
        ie_weight = _load(ie_weight_ptr, c, exists)
        slope = _load(gate_weight_ptr, c, exists) * rstd * ie_weight
        offset += _load(gate_bias_ptr, c, exists) * ie_weight
    if MOVE_GATE:
        _update(gate_mean_ptr, gate_var_ptr, gate_count_ptr, c, exists,
                z_mean, z_var, N.to(tl.float32), gate_momentum)
    for first in range(0, N, BN):
        at, mask = _images(first, N, C, c, exists, BN)
        x, _, f = _pooled(kept_ptr, at, mask, NC, a, beta, mu, NORM)
        z = w0 * x + w1 * (x + f) - z_mean[None, :]
        step = gate_scale * tl.sigmoid(z * slope[None, :] + offset[None, :])
        if NORM:
            tl.store(vectors_ptr + at, step * a[None, :], mask)
            tl.store(vectors_ptr + NC + at, step * beta[None, :], mask)
        else:
            tl.store(vectors_ptr + at, step, mask)


@triton.jit
def _gate(partial_ptr, at, mask, NC, splits, x, f, w0, w1, z_mean,
          z_rstd, gate_weight, gate_bias, ie_weight, ie_bias, a, beta, scale,
          NORM: tl.constexpr, GATE: tl.constexpr):
    """G, P, ẑ, y, Δt and the derivative of its logits."""
    total = _load(partial_ptr, at, mask)
    product = _load(partial_ptr + splits * NC, at, mask)
    for split in range(1, splits):
        total += _load(partial_ptr + split * NC, at, mask)
        product += _load(partial_ptr + (splits + split) * NC, at, mask)
    z = w0[None, :] * x + w1[None, :] * (x + f)
    y = z
    logits = z + ie_bias[None, :]
    if GATE:
        z = (z - z_mean[None, :]) * z_rstd[None, :]
        y = z * gate_weight[None, :] + gate_bias[None, :]
        logits = y * ie_weight[None, :] + ie_bias[None, :]
    sigmoid = tl.sigmoid(logits)
    d_step = product
    if NORM:
        d_step = product * a[None, :] + total * beta[None, :]
    d_logits = tl.where(mask, d_step * scale * sigmoid * (1 - sigmoid), 0.0)
    return total, product, z, y, scale * sigmoid, d_logits


@triton.jit
def vectors_gradients_kernel(
        partial_ptr, kept_ptr, vectors_ptr, rows_ptr, weight_ptr, bias_ptr,
        pair_ptr, gate_weight_ptr, gate_bias_ptr, ie_weight_ptr, ie_bias_ptr,
        N, C, S, splits,
        gate_scale, NORM: tl.constexpr, GATE: tl.constexpr, BN: tl.constexpr,
        BC: tl.constexpr):
    """:func:`.formulas.backward`. NORM, GATE: 0 none, 1 running, 2 batch."""
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    exists = c < C
    NC = N.to(tl.int64) * C
    statistics_ptr = kept_ptr + 2 * NC
    zero = tl.zeros([BC], tl.float32)
    mu, rstd, a, beta = zero, zero, zero, zero
    if NORM:
        mu = _load(statistics_ptr, c, exists)
        rstd = _load(statistics_ptr + C, c, exists)
        a = _load(weight_ptr, c, exists) * rstd
        beta = _load(bias_ptr, c, exists)
    z_mean, z_rstd, ie_weight = zero, zero, zero
    gate_weight, gate_bias = zero, zero
    if GATE:
        z_mean = _load(statistics_ptr + 2 * C, c, exists)
        z_rstd = _load(statistics_ptr + 3 * C, c, exists)
        gate_weight = _load(gate_weight_ptr, c, exists)
        gate_bias = _load(gate_bias_ptr, c, exists)
        ie_weight = _load(ie_weight_ptr, c, exists)
    ie_bias = _load(ie_bias_ptr, c, exists)
    w0 = _load(pair_ptr, 2 * c, exists)
    w1 = _load(pair_ptr, 2 * c + 1, exists)

    d_ie_weight, d_ie_bias, d_gate_weight = zero, zero, zero
    for first in range(0, N, BN):
        at, mask = _images(first, N, C, c, exists, BN)
        x, _, f = _pooled(kept_ptr, at, mask, NC, a, beta, mu, NORM)
        _, _, z, y, _, d_logits = _gate(
            partial_ptr, at, mask, NC, splits, x, f, w0, w1,
            z_mean, z_rstd, gate_weight, gate_bias, ie_weight, ie_bias, a,
            beta, gate_scale, NORM, GATE)
        d_ie_bias += tl.sum(d_logits, 0)
        d_ie_weight += tl.sum(d_logits * y, 0)
        d_gate_weight += tl.sum(d_logits * z, 0)
    d_gate_weight *= ie_weight
    d_gate_bias = d_ie_bias * ie_weight

    d_w0, d_w1, d_a, d_beta = zero, zero, zero, zero
    for first in range(0, N, BN):
        at, mask = _images(first, N, C, c, exists, BN)
        x, centred, f = _pooled(kept_ptr, at, mask, NC, a, beta, mu, NORM)
        total, product, z, _, step, d_z = _gate(
            partial_ptr, at, mask, NC, splits, x, f, w0, w1,
            z_mean, z_rstd, gate_weight, gate_bias, ie_weight, ie_bias, a,
            beta, gate_scale, NORM, GATE)
        if GATE:
            d_z *= ie_weight[None, :]
            if GATE == 2:
                d_z -= (d_gate_bias[None, :] + z * d_gate_weight[None, :]) / N
            d_z *= (gate_weight * z_rstd)[None, :]
        d_z = tl.where(mask, d_z, 0.0)
        d_w0 += tl.sum(d_z * x, 0)
        d_w1 += tl.sum(d_z * (x + f), 0)
        d_f = d_z * w1[None, :]
        offset, scale = d_f / S, step
        if NORM:
            d_a += tl.sum(product * step + d_f * centred, 0)
            d_beta += tl.sum(total * step + d_f, 0)
            offset, scale = offset * a[None, :], step * a[None, :]
        tl.store(vectors_ptr + at, scale, mask)
        tl.store(vectors_ptr + NC + at, offset, mask)
        tl.store(vectors_ptr + 2 * NC + at, d_z * (w0 + w1)[None, :] / S,
                 mask)
    d_a *= rstd
    values = N.to(tl.float32) * S
    tl.store(rows_ptr + c, -d_a * a * rstd / values, exists)
    tl.store(rows_ptr + C + c, -d_beta * a / values, exists)
    tl.store(rows_ptr + 2 * C + c, d_a, exists)
    tl.store(rows_ptr + 3 * C + c, d_beta, exists)
    tl.store(rows_ptr + 4 * C + 2 * c, d_w0, exists)
    tl.store(rows_ptr + 4 * C + 2 * c + 1, d_w1, exists)
    tl.store(rows_ptr + 6 * C + c, d_gate_weight, exists)
    tl.store(rows_ptr + 7 * C + c, d_gate_bias, exists)
    tl.store(rows_ptr + 8 * C + c, d_ie_weight, exists)
    tl.store(rows_ptr + 9 * C + c, d_ie_bias, exists)
