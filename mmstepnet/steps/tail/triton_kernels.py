"""The Triton kernels of the fused residual step: three a direction.

Where maps are small and no statistics are the batch's, one for the forward.

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

import triton
import triton.language as tl


@triton.jit
def _load(ptr, offsets, mask):
    return tl.load(ptr + offsets, mask, 0.0).to(tl.float32)


@triton.jit
def _store(ptr, offsets, value, mask):
    tl.store(ptr + offsets, value.to(ptr.dtype.element_ty), mask)


@triton.jit
def _sizes(C, S, LAST: tl.constexpr, VEC: tl.constexpr):
    """The sizes, one of which the compiler now knows VEC to divide."""
    if LAST:
        return C // VEC * VEC, S
    return C, S // VEC * VEC


@triton.jit
def _block(block, C, BC: tl.constexpr):
    """A block's image, channels and which of these exist."""
    blocks = tl.cdiv(C, BC)
    c = block % blocks * BC + tl.arange(0, BC)
    return (block // blocks).to(tl.int64), c, c < C


@triton.jit
def _tile(
    block, tile, C, S, LAST: tl.constexpr, BC: tl.constexpr, BP: tl.constexpr
):
    """A tile's place, those of its elements, (BC, BP), and which exist."""
    image, _, exists = _block(block, C, BC)
    first = block % tl.cdiv(C, BC) * BC
    c, p = tl.arange(0, BC)[:, None], tl.arange(0, BP)[None, :]
    mask = exists[:, None] & (tile * BP + p < S)
    if LAST:
        return (image * S + tile * BP) * C + first, p * C + c, mask
    return (image * C + first) * S + tile * BP, c * S + p, mask


@triton.jit
def _kappa(c_ptr, N, C, S, c, exists, LAST: tl.constexpr):
    """The median of three values that lie far from each other."""
    c = c if LAST else c.to(tl.int64) * S
    by_pixel, image = C if LAST else 1, C.to(tl.int64) * S
    a = _load(c_ptr, c, exists)
    b = _load(c_ptr + (N // 2) * image + (S // 2) * by_pixel, c, exists)
    d = _load(c_ptr + N * image - image + (S - 1) * by_pixel, c, exists)
    return tl.maximum(tl.minimum(a, b), tl.minimum(tl.maximum(a, b), d))


@triton.jit
def _add_three(a, b, c, d, e, f):
    return a + d, b + e, c + f


@triton.jit
def pool_kernel(
    x_ptr,
    c_ptr,
    mean_ptr,
    partial_ptr,
    kept_ptr,
    N,
    C,
    S,
    span,
    BATCH: tl.constexpr,
    LAST: tl.constexpr,
    VEC: tl.constexpr,
    STAGES: tl.constexpr,
    BC: tl.constexpr,
    BP: tl.constexpr,
):
    """Σ x, Σ (c - κ) and Σ (c - κ)², of each split of ``span`` tiles."""
    C, S = _sizes(C, S, LAST, VEC)
    block, split = tl.program_id(0), tl.program_id(1)
    NC, splits = N.to(tl.int64) * C, tl.num_programs(1)
    image, c, exists = _block(block, C, BC)
    if BATCH:
        kappa = _kappa(c_ptr, N, C, S, c, exists, LAST)
    else:
        kappa = _load(mean_ptr, c, exists)
    if (image == 0) & (split == 0):
        tl.store(kept_ptr + 4 * NC + c, kappa, exists)
    total = tl.zeros([BC, BP], tl.float32)
    mean, square = total, total
    first = split * span
    for tile in tl.range(
        first, tl.minimum(first + span, tl.cdiv(S, BP)), num_stages=STAGES
    ):
        begin, at, mask = _tile(block, tile, C, S, LAST, BC, BP)
        total += _load(x_ptr + begin, at, mask)
        away = _load(c_ptr + begin, at, mask) - kappa[:, None]
        away = tl.where(mask, away, 0.0)
        mean += away
        square += away * away
    total, mean, square = tl.reduce((total, mean, square), 1, _add_three)
    at = split * NC + image * C + c
    tl.store(partial_ptr + at, total, exists)
    tl.store(partial_ptr + splits * NC + at, mean, exists)
    tl.store(partial_ptr + 2 * splits * NC + at, square, exists)


@triton.jit
def write_kernel(
    x_ptr,
    c_ptr,
    out_ptr,
    kept_ptr,
    N,
    C,
    S,
    span,
    RELU: tl.constexpr,
    LAST: tl.constexpr,
    VEC: tl.constexpr,
    STAGES: tl.constexpr,
    BC: tl.constexpr,
    BP: tl.constexpr,
):
    """relu(x + f Δt) with f = (c - μ) a + β."""
    C, S = _sizes(C, S, LAST, VEC)
    block, first = tl.program_id(0), tl.program_id(1) * span
    image, c, exists = _block(block, C, BC)
    row, NC = image * C + c, N.to(tl.int64) * C
    rows_ptr = kept_ptr + 4 * NC
    step = _load(kept_ptr + 3 * NC, row, exists)
    scale = _load(rows_ptr + 3 * C, c, exists) * step
    shift = _load(rows_ptr + 4 * C, c, exists) * step
    kappa, rest = _load(rows_ptr, c, exists), _load(rows_ptr + C, c, exists)
    for tile in tl.range(
        first, tl.minimum(first + span, tl.cdiv(S, BP)), num_stages=STAGES
    ):
        begin, at, mask = _tile(block, tile, C, S, LAST, BC, BP)
        centred = _load(c_ptr + begin, at, mask) - kappa[:, None]
        centred -= rest[:, None]
        out = (
            _load(x_ptr + begin, at, mask)
            + shift[:, None]
            + centred * scale[:, None]
        )
        if RELU:
            # Not a maximum, which may lose a NaN.
            out = tl.where(out < 0, 0.0, out)
        _store(out_ptr + begin, at, out, mask)


@triton.jit
def _choose_held(
    x_mean,
    f_mean,
    pair_ptr,
    gate_weight_ptr,
    gate_bias_ptr,
    ie_weight_ptr,
    ie_bias_ptr,
    gate_mean_ptr,
    gate_var_ptr,
    gate_eps,
    k,
    c,
    exists,
):
    """ẑ, ρ and Δt of an image's channels, by running statistics."""
    w0 = _load(pair_ptr, 2 * c, exists)
    w1 = _load(pair_ptr, 2 * c + 1, exists)
    z = w0 * x_mean + w1 * (x_mean + f_mean)
    rstd = tl.rsqrt(_load(gate_var_ptr, c, exists) + gate_eps)
    z = (z - _load(gate_mean_ptr, c, exists)) * rstd
    ie_weight = _load(ie_weight_ptr, c, exists)
    slope = ie_weight * _load(gate_weight_ptr, c, exists)
    offset = ie_weight * _load(gate_bias_ptr, c, exists)
    offset += _load(ie_bias_ptr, c, exists)
    return z, rstd, k * tl.sigmoid(z * slope + offset)


@triton.jit
def hold_kernel(
    x_ptr,
    c_ptr,
    out_ptr,
    kept_ptr,
    weight_ptr,
    bias_ptr,
    pair_ptr,
    gate_weight_ptr,
    gate_bias_ptr,
    ie_weight_ptr,
    ie_bias_ptr,
    norm_mean_ptr,
    norm_var_ptr,
    gate_mean_ptr,
    gate_var_ptr,
    N,
    C,
    S,
    norm_eps,
    gate_eps,
    k,
    RELU: tl.constexpr,
    LAST: tl.constexpr,
    VEC: tl.constexpr,
    BC: tl.constexpr,
    BP: tl.constexpr,
):
    """A tail whose norms take running statistics, read once.

    StepNet's gate joins no channels, so a program that holds all pixels of an
    image's few channels needs no other one.
    """
    C, S = _sizes(C, S, LAST, VEC)
    block = tl.program_id(0)
    image, c, exists = _block(block, C, BC)
    begin, at, mask = _tile(block, 0, C, S, LAST, BC, BP)
    x = _load(x_ptr + begin, at, mask)
    kappa = _load(norm_mean_ptr, c, exists)
    away = _load(c_ptr + begin, at, mask) - kappa[:, None]
    away = tl.where(mask, away, 0.0)
    norm_rstd = tl.rsqrt(_load(norm_var_ptr, c, exists) + norm_eps)
    a = _load(weight_ptr, c, exists) * norm_rstd
    bias = _load(bias_ptr, c, exists)
    x_mean, centred = tl.sum(x, 1) / S, tl.sum(away, 1) / S
    z, rstd, step = _choose_held(
        x_mean,
        centred * a + bias,
        pair_ptr,
        gate_weight_ptr,
        gate_bias_ptr,
        ie_weight_ptr,
        ie_bias_ptr,
        gate_mean_ptr,
        gate_var_ptr,
        gate_eps,
        k,
        c,
        exists,
    )
    out = x + (bias * step)[:, None] + away * (a * step)[:, None]
    if RELU:
        out = tl.where(out < 0, 0.0, out)
    _store(out_ptr + begin, at, out, mask)
    row, NC = image * C + c, N.to(tl.int64) * C
    tl.store(kept_ptr + row, x_mean, exists)
    tl.store(kept_ptr + NC + row, centred, exists)
    tl.store(kept_ptr + 2 * NC + row, z, exists)
    tl.store(kept_ptr + 3 * NC + row, step, exists)
    if image == 0:
        rows_ptr = kept_ptr + 4 * NC + c
        tl.store(rows_ptr, kappa, exists)
        tl.store(rows_ptr + C, tl.zeros([BC], tl.float32), exists)
        tl.store(rows_ptr + 2 * C, norm_rstd, exists)
        tl.store(rows_ptr + 3 * C, a, exists)
        tl.store(rows_ptr + 4 * C, bias, exists)
        tl.store(rows_ptr + 5 * C, rstd, exists)


@triton.jit
def _masked(grad_ptr, out_ptr, at, mask, RELU: tl.constexpr):
    grad = _load(grad_ptr, at, mask)
    if RELU:
        grad = tl.where(_load(out_ptr, at, mask) <= 0, 0.0, grad)
    return grad


@triton.jit
def reduce_kernel(
    grad_ptr,
    out_ptr,
    c_ptr,
    kept_ptr,
    partial_ptr,
    N,
    C,
    S,
    span,
    RELU: tl.constexpr,
    LAST: tl.constexpr,
    VEC: tl.constexpr,
    STAGES: tl.constexpr,
    BC: tl.constexpr,
    BP: tl.constexpr,
):
    """G = Σ g and P = Σ g (c - μ), of each split of ``span`` tiles."""
    C, S = _sizes(C, S, LAST, VEC)
    block, split = tl.program_id(0), tl.program_id(1)
    NC, splits = N.to(tl.int64) * C, tl.num_programs(1)
    image, c, exists = _block(block, C, BC)
    rows_ptr, first = kept_ptr + 4 * NC, split * span
    kappa, rest = _load(rows_ptr, c, exists), _load(rows_ptr + C, c, exists)
    total = tl.zeros([BC, BP], tl.float32)
    product = total
    for tile in tl.range(
        first, tl.minimum(first + span, tl.cdiv(S, BP)), num_stages=STAGES
    ):
        begin, at, mask = _tile(block, tile, C, S, LAST, BC, BP)
        grad = _masked(grad_ptr + begin, out_ptr + begin, at, mask, RELU)
        centred = _load(c_ptr + begin, at, mask) - kappa[:, None]
        centred -= rest[:, None]
        total += grad
        product += grad * centred
    at = split * NC + image * C + c
    tl.store(partial_ptr + at, tl.sum(total, 1), exists)
    tl.store(partial_ptr + splits * NC + at, tl.sum(product, 1), exists)


@triton.jit
def write_gradients_kernel(
    grad_ptr,
    out_ptr,
    c_ptr,
    d_x_ptr,
    d_c_ptr,
    kept_ptr,
    partial_ptr,
    N,
    C,
    S,
    span,
    splits,
    BATCH: tl.constexpr,
    RELU: tl.constexpr,
    LAST: tl.constexpr,
    VEC: tl.constexpr,
    STAGES: tl.constexpr,
    BC: tl.constexpr,
    BP: tl.constexpr,
):
    """Write dx = g + x_offset and dc = g scale + (c - μ) slope + offset."""
    C, S = _sizes(C, S, LAST, VEC)
    block, first = tl.program_id(0), tl.program_id(1) * span
    image, c, exists = _block(block, C, BC)
    row, NC = image * C + c, N.to(tl.int64) * C
    rows_ptr = kept_ptr + 4 * NC
    step = _load(kept_ptr + 3 * NC, row, exists)
    scale = step * _load(rows_ptr + 3 * C, c, exists)
    offset = _load(partial_ptr, row, exists)
    x_offset = _load(partial_ptr + splits * NC, row, exists)
    if BATCH:
        slope_ptr = partial_ptr + 2 * splits * NC
        slope = _load(slope_ptr, c, exists)
        offset += _load(slope_ptr + C, c, exists)
        kappa = _load(rows_ptr, c, exists)
        rest = _load(rows_ptr + C, c, exists)
    for tile in tl.range(
        first, tl.minimum(first + span, tl.cdiv(S, BP)), num_stages=STAGES
    ):
        begin, at, mask = _tile(block, tile, C, S, LAST, BC, BP)
        grad = _masked(grad_ptr + begin, out_ptr + begin, at, mask, RELU)
        d_c = grad * scale[:, None] + offset[:, None]
        if BATCH:
            centred = _load(c_ptr + begin, at, mask) - kappa[:, None]
            centred -= rest[:, None]
            d_c += centred * slope[:, None]
        _store(d_c_ptr + begin, at, d_c, mask)
        _store(d_x_ptr + begin, at, grad + x_offset[:, None], mask)


@triton.jit
def _images(first, N, C, c, BN: tl.constexpr):
    """Places of a chunk of images in (N, C), and which of them exist."""
    n = first + tl.arange(0, BN)
    return (
        n.to(tl.int64)[:, None] * C + c[None, :],
        (n < N)[:, None] & (c < C)[None, :],
        tl.minimum(N - first, BN).to(tl.float32),
    )


@triton.jit
def _join(mean, square, seen, values, mask, here):
    """Moments of images seen and of a chunk together (Chan et al., 1979)."""
    new = tl.sum(values, 0) / here
    deviation = tl.where(mask, values - new[None, :], 0.0)
    delta = new - mean
    share = here / (seen + here)
    return (
        mean + delta * share,
        square
        + tl.sum(deviation * deviation, 0)
        + delta * delta * seen * share,
    )


@triton.jit
def _statistics(
    mean,
    square,
    count,
    eps,
    mean_ptr,
    var_ptr,
    count_ptr,
    momentum,
    c,
    exists,
    BATCH: tl.constexpr,
    FINITE: tl.constexpr,
):
    """Mean and 1/deviation that a BN takes; it updates its running ones.

    Where FINITE is set, those of the batch that are not finite are left out,
    as in ``attentions.base.normalise``.
    """
    var = square / count
    if not BATCH:
        mean, var = _load(mean_ptr, c, exists), _load(var_ptr, c, exists)
    elif count_ptr is not None:
        old, moved = _load(mean_ptr, c, exists), square / (count - 1)
        if FINITE:  # then the mean is finite, too
            exists = exists & (moved < float('inf'))
        _store(mean_ptr, c, old + momentum * (mean - old), exists)
        old = _load(var_ptr, c, exists)
        _store(var_ptr, c, old + momentum * (moved - old), exists)
        if tl.program_id(0) == 0:
            tl.store(count_ptr, tl.load(count_ptr) + 1)
    return mean, tl.rsqrt(var + eps)


@triton.jit
def _choose(
    z_ptr,
    step_ptr,
    rstd_ptr,
    z_mean,
    square,
    gate_weight_ptr,
    gate_bias_ptr,
    ie_weight_ptr,
    ie_bias_ptr,
    gate_mean_ptr,
    gate_var_ptr,
    gate_count_ptr,
    gate_eps,
    gate_momentum,
    N,
    C,
    c,
    k,
    GATE: tl.constexpr,
    BN: tl.constexpr,
):
    """From z and its moments: ẑ in its place, Δt and ρ."""
    exists = c < C
    z_mean, z_rstd = _statistics(
        z_mean,
        square,
        N.to(tl.float32),
        gate_eps,
        gate_mean_ptr,
        gate_var_ptr,
        gate_count_ptr,
        gate_momentum,
        c,
        exists,
        GATE,
        True,
    )
    tl.store(rstd_ptr + c, z_rstd, exists)
    tl.debug_barrier()  # the z that were stored are read again

    ie_weight = _load(ie_weight_ptr, c, exists)
    slope = ie_weight * _load(gate_weight_ptr, c, exists)
    offset = ie_weight * _load(gate_bias_ptr, c, exists)
    offset += _load(ie_bias_ptr, c, exists)
    for first in range(0, N, BN):
        at, mask, _ = _images(first, N, C, c, BN)
        z = (_load(z_ptr, at, mask) - z_mean[None, :]) * z_rstd[None, :]
        tl.store(z_ptr + at, z, mask)
        step = k * tl.sigmoid(z * slope[None, :] + offset[None, :])
        tl.store(step_ptr + at, step, mask)


@triton.jit
def _d_z(
    d_logits_ptr,
    z_ptr,
    at,
    mask,
    d_ie_bias,
    by_z,
    slope,
    N,
    GATE: tl.constexpr,
):
    """Gradient of z, of a chunk of images."""
    d_z = _load(d_logits_ptr, at, mask)
    if GATE:
        z = _load(z_ptr, at, mask)
        d_z -= (d_ie_bias[None, :] + z * by_z[None, :]) / N
    return tl.where(mask, d_z * slope[None, :], 0.0)


@triton.jit
def _store_gradients(
    d_pair_ptr,
    d_gate_weight_ptr,
    d_gate_bias_ptr,
    d_ie_weight_ptr,
    d_ie_bias_ptr,
    d_w0,
    d_w1,
    by_z,
    d_ie_bias,
    gate_weight,
    gate_bias,
    ie_weight,
    c,
    exists,
):
    """Gradients of what the gate has learned."""
    _store(d_pair_ptr, 2 * c, d_w0, exists)
    _store(d_pair_ptr, 2 * c + 1, d_w1, exists)
    _store(d_gate_weight_ptr, c, by_z * ie_weight, exists)
    _store(d_gate_bias_ptr, c, d_ie_bias * ie_weight, exists)
    _store(
        d_ie_weight_ptr, c, by_z * gate_weight + d_ie_bias * gate_bias, exists
    )
    _store(d_ie_bias_ptr, c, d_ie_bias, exists)


@triton.jit
def vectors_kernel(
    partial_ptr,
    kept_ptr,
    weight_ptr,
    bias_ptr,
    pair_ptr,
    gate_weight_ptr,
    gate_bias_ptr,
    ie_weight_ptr,
    ie_bias_ptr,
    norm_mean_ptr,
    norm_var_ptr,
    norm_count_ptr,
    gate_mean_ptr,
    gate_var_ptr,
    gate_count_ptr,
    N,
    C,
    S,
    splits,
    norm_eps,
    norm_momentum,
    gate_eps,
    gate_momentum,
    k,
    NORM: tl.constexpr,
    GATE: tl.constexpr,
    BN: tl.constexpr,
    BC: tl.constexpr,
):
    """Between the forward's passes. NORM, GATE: by the batch's statistics."""
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    exists = c < C
    NC = N.to(tl.int64) * C
    f_ptr, z_ptr = kept_ptr + NC, kept_ptr + 2 * NC
    step_ptr, rows_ptr = kept_ptr + 3 * NC, kept_ptr + 4 * NC
    mean = tl.zeros([BC], tl.float32)
    square = mean
    for first in range(0, N, BN):
        at, mask, _ = _images(first, N, C, c, BN)
        x = tl.zeros([BN, BC], tl.float32)
        away, squares = x, x
        for split in range(splits):
            part = split * NC + at
            x += _load(partial_ptr, part, mask)
            away += _load(partial_ptr + splits * NC, part, mask)
            squares += _load(partial_ptr + 2 * splits * NC, part, mask)
        tl.store(kept_ptr + at, x / S, mask)
        tl.store(f_ptr + at, away / S, mask)
        mean += tl.sum(away, 0)
        square += tl.sum(squares, 0)
    count = N.to(tl.float32) * S
    if NORM:
        mean /= count
        square -= mean * mean * count
    else:
        mean = tl.zeros([BC], tl.float32)  # κ is it
    square = tl.where(square < 0, 0.0, square)  # keeps a NaN
    _mu, rstd = _statistics(
        _load(rows_ptr, c, exists) + mean,
        square,
        count,
        norm_eps,
        norm_mean_ptr,
        norm_var_ptr,
        norm_count_ptr,
        norm_momentum,
        c,
        exists,
        NORM,
        False,
    )
    bias = _load(bias_ptr, c, exists)
    a = _load(weight_ptr, c, exists) * rstd
    tl.store(rows_ptr + C + c, mean, exists)
    tl.store(rows_ptr + 2 * C + c, rstd, exists)
    tl.store(rows_ptr + 3 * C + c, a, exists)
    tl.store(rows_ptr + 4 * C + c, bias, exists)
    tl.debug_barrier()  # the stores above are read again

    w0 = _load(pair_ptr, 2 * c, exists)[None, :]
    w1 = _load(pair_ptr, 2 * c + 1, exists)[None, :]
    z_mean = tl.zeros([BC], tl.float32)
    square = z_mean
    for first in range(0, N, BN):
        at, mask, here = _images(first, N, C, c, BN)
        x = _load(kept_ptr, at, mask)
        centred = _load(f_ptr, at, mask) - mean[None, :]
        f = centred * a[None, :] + bias[None, :]
        z = tl.where(mask, w0 * x + w1 * (x + f), 0.0)
        tl.store(f_ptr + at, centred, mask)
        tl.store(z_ptr + at, z, mask)
        z_mean, square = _join(z_mean, square, first * 1.0, z, mask, here)
    _choose(
        z_ptr,
        step_ptr,
        rows_ptr + 5 * C,
        z_mean,
        square,
        gate_weight_ptr,
        gate_bias_ptr,
        ie_weight_ptr,
        ie_bias_ptr,
        gate_mean_ptr,
        gate_var_ptr,
        gate_count_ptr,
        gate_eps,
        gate_momentum,
        N,
        C,
        c,
        k,
        GATE,
        BN,
    )


@triton.jit
def vectors_gradients_kernel(
    partial_ptr,
    kept_ptr,
    pair_ptr,
    gate_weight_ptr,
    gate_bias_ptr,
    ie_weight_ptr,
    d_weight_ptr,
    d_bias_ptr,
    d_pair_ptr,
    d_gate_weight_ptr,
    d_gate_bias_ptr,
    d_ie_weight_ptr,
    d_ie_bias_ptr,
    N,
    C,
    S,
    splits,
    k,
    NORM: tl.constexpr,
    GATE: tl.constexpr,
    BN: tl.constexpr,
    BC: tl.constexpr,
):
    """Between the backward's passes. NORM, GATE: by the batch's statistics."""
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    exists = c < C
    NC = N.to(tl.int64) * C
    f_ptr, z_ptr = kept_ptr + NC, kept_ptr + 2 * NC
    step_ptr, rows_ptr = kept_ptr + 3 * NC, kept_ptr + 4 * NC
    other_ptr = partial_ptr + splits * NC
    rstd = _load(rows_ptr + 2 * C, c, exists)
    a = _load(rows_ptr + 3 * C, c, exists)
    bias = _load(rows_ptr + 4 * C, c, exists)
    d_a = tl.zeros([BC], tl.float32)
    d_bias, d_ie_bias, by_z = d_a, d_a, d_a
    for first in range(0, N, BN):
        at, mask, _ = _images(first, N, C, c, BN)
        total = tl.zeros([BN, BC], tl.float32)
        product = total
        for split in range(splits):
            total += _load(partial_ptr, split * NC + at, mask)
            product += _load(other_ptr, split * NC + at, mask)
        step = _load(step_ptr, at, mask)
        d_step = product * a[None, :] + total * bias[None, :]
        d_logits = d_step * step * (1 - step / k)
        tl.store(partial_ptr + at, d_logits, mask)
        d_a += tl.sum(product * step, 0)
        d_bias += tl.sum(total * step, 0)
        d_ie_bias += tl.sum(d_logits, 0)
        by_z += tl.sum(d_logits * _load(z_ptr, at, mask), 0)
    tl.debug_barrier()  # the stores above are read again

    gate_weight = _load(gate_weight_ptr, c, exists)
    ie_weight = _load(ie_weight_ptr, c, exists)
    slope = gate_weight * ie_weight * _load(rows_ptr + 5 * C, c, exists)
    w0 = _load(pair_ptr, 2 * c, exists)
    w1 = _load(pair_ptr, 2 * c + 1, exists)
    d_w0 = tl.zeros([BC], tl.float32)
    d_w1 = d_w0
    for first in range(0, N, BN):
        at, mask, _ = _images(first, N, C, c, BN)
        x, centred = _load(kept_ptr, at, mask), _load(f_ptr, at, mask)
        d_z = _d_z(
            partial_ptr, z_ptr, at, mask, d_ie_bias, by_z, slope, N, GATE
        )
        d_f = d_z * w1[None, :]
        d_w0 += tl.sum(d_z * x, 0)
        d_w1 += tl.sum(d_z * (x + centred * a[None, :] + bias[None, :]), 0)
        d_a += tl.sum(d_f * centred, 0)
        d_bias += tl.sum(d_f, 0)
        tl.store(partial_ptr + at, d_f * a[None, :] / S, mask)
        tl.store(other_ptr + at, d_z * (w0 + w1)[None, :] / S, mask)
    d_weight = d_a * rstd
    if NORM:
        values = N.to(tl.float32) * S
        slope_ptr = other_ptr + splits * NC
        tl.store(slope_ptr + c, -d_weight * a * rstd / values, exists)
        tl.store(slope_ptr + C + c, -d_bias * a / values, exists)
    _store(d_weight_ptr, c, d_weight, exists)
    _store(d_bias_ptr, c, d_bias, exists)
    _store_gradients(
        d_pair_ptr,
        d_gate_weight_ptr,
        d_gate_bias_ptr,
        d_ie_weight_ptr,
        d_ie_bias_ptr,
        d_w0,
        d_w1,
        by_z,
        d_ie_bias,
        gate_weight,
        _load(gate_bias_ptr, c, exists),
        ie_weight,
        c,
        exists,
    )
