"""The Triton kernels of a step at a branch's end: three a direction.

Or one for the forward, as a tail has.

As :mod:`.triton_kernels`, whose tiles and sizes they share. State, branch and
gradient may each lie in another order (X_ORDER, ORDER, G_ORDER, see
:class:`.parts.Layout`), and x may have another dtype. The mathematics is in
:mod:`.scaled`. Buffers of float32:

- ``partial``: of the forward Σ x and Σ f, (2, splits, N, C), and of the
  backward Σ g f, (splits, N, C), in whose place the offsets of df come;
- ``kept``: X, F, ẑ and Δt, (N, C) each, then ρ, (C,).
"""

import triton
import triton.language as tl

from .triton_kernels import (
    _block,
    _choose,
    _choose_held,
    _d_z,
    _images,
    _join,
    _load,
    _sizes,
    _store,
    _store_gradients,
    _tile,
)


@triton.jit
def _place(
    block,
    tile,
    N,
    C,
    S,
    KIND: tl.constexpr,
    BC: tl.constexpr,
    BP: tl.constexpr,
):
    """A tile's place, those of its elements, (BC, BP), and which exist."""
    if KIND < 2:
        return _tile(block, tile, C, S, KIND, BC, BP)
    image, _, exists = _block(block, C, BC)
    first = block % tl.cdiv(C, BC) * BC
    c, p = tl.arange(0, BC)[:, None], tl.arange(0, BP)[None, :]
    begin = (N.to(tl.int64) * (tile * BP) + image) * C + first
    return begin, p * (N * C) + c, exists[:, None] & (tile * BP + p < S)


@triton.jit
def pool_kernel(
    x_ptr,
    f_ptr,
    partial_ptr,
    N,
    C,
    S,
    span,
    X_ORDER: tl.constexpr,
    ORDER: tl.constexpr,
    VEC: tl.constexpr,
    STAGES: tl.constexpr,
    BC: tl.constexpr,
    BP: tl.constexpr,
):
    """Σ x and Σ f, of each split of ``span`` tiles."""
    C, S = _sizes(C, S, ORDER, VEC)
    block, split = tl.program_id(0), tl.program_id(1)
    NC, splits = N.to(tl.int64) * C, tl.num_programs(1)
    image, c, exists = _block(block, C, BC)
    of_x = tl.zeros([BC, BP], tl.float32)
    of_f = of_x
    first = split * span
    for tile in tl.range(
        first, tl.minimum(first + span, tl.cdiv(S, BP)), num_stages=STAGES
    ):
        begin, at, mask = _place(block, tile, N, C, S, X_ORDER, BC, BP)
        of_x += _load(x_ptr + begin, at, mask)
        begin, at, mask = _place(block, tile, N, C, S, ORDER, BC, BP)
        of_f += _load(f_ptr + begin, at, mask)
    at = split * NC + image * C + c
    tl.store(partial_ptr + at, tl.sum(of_x, 1), exists)
    tl.store(partial_ptr + splits * NC + at, tl.sum(of_f, 1), exists)


@triton.jit
def write_kernel(
    f_ptr,
    out_ptr,
    kept_ptr,
    N,
    C,
    S,
    span,
    ORDER: tl.constexpr,
    VEC: tl.constexpr,
    STAGES: tl.constexpr,
    BC: tl.constexpr,
    BP: tl.constexpr,
):
    """Write f Δt."""
    C, S = _sizes(C, S, ORDER, VEC)
    block, first = tl.program_id(0), tl.program_id(1) * span
    image, c, exists = _block(block, C, BC)
    NC = N.to(tl.int64) * C
    step = _load(kept_ptr + 3 * NC, image * C + c, exists)
    for tile in tl.range(
        first, tl.minimum(first + span, tl.cdiv(S, BP)), num_stages=STAGES
    ):
        begin, at, mask = _place(block, tile, N, C, S, ORDER, BC, BP)
        out = _load(f_ptr + begin, at, mask) * step[:, None]
        _store(out_ptr + begin, at, out, mask)


@triton.jit
def hold_kernel(
    x_ptr,
    f_ptr,
    out_ptr,
    kept_ptr,
    pair_ptr,
    gate_weight_ptr,
    gate_bias_ptr,
    ie_weight_ptr,
    ie_bias_ptr,
    gate_mean_ptr,
    gate_var_ptr,
    N,
    C,
    S,
    gate_eps,
    k,
    X_ORDER: tl.constexpr,
    ORDER: tl.constexpr,
    VEC: tl.constexpr,
    BC: tl.constexpr,
    BP: tl.constexpr,
):
    """All of the forward, read once, as the tail's; by running statistics."""
    C, S = _sizes(C, S, ORDER, VEC)
    block = tl.program_id(0)
    image, c, exists = _block(block, C, BC)
    begin, at, mask = _place(block, 0, N, C, S, X_ORDER, BC, BP)
    x_mean = tl.sum(_load(x_ptr + begin, at, mask), 1) / S
    begin, at, mask = _place(block, 0, N, C, S, ORDER, BC, BP)
    f = _load(f_ptr + begin, at, mask)
    f_mean = tl.sum(f, 1) / S
    z, rstd, step = _choose_held(
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
    )
    _store(out_ptr + begin, at, f * step[:, None], mask)
    row, NC = image * C + c, N.to(tl.int64) * C
    tl.store(kept_ptr + row, x_mean, exists)
    tl.store(kept_ptr + NC + row, f_mean, exists)
    tl.store(kept_ptr + 2 * NC + row, z, exists)
    tl.store(kept_ptr + 3 * NC + row, step, exists)
    if image == 0:
        tl.store(kept_ptr + 4 * NC + c, rstd, exists)


@triton.jit
def reduce_kernel(
    grad_ptr,
    f_ptr,
    partial_ptr,
    N,
    C,
    S,
    span,
    G_ORDER: tl.constexpr,
    ORDER: tl.constexpr,
    VEC: tl.constexpr,
    STAGES: tl.constexpr,
    BC: tl.constexpr,
    BP: tl.constexpr,
):
    """Σ g f, of each split of ``span`` tiles."""
    C, S = _sizes(C, S, ORDER, VEC)
    block, split = tl.program_id(0), tl.program_id(1)
    NC = N.to(tl.int64) * C
    image, c, exists = _block(block, C, BC)
    total = tl.zeros([BC, BP], tl.float32)
    first = split * span
    for tile in tl.range(
        first, tl.minimum(first + span, tl.cdiv(S, BP)), num_stages=STAGES
    ):
        begin, at, mask = _place(block, tile, N, C, S, G_ORDER, BC, BP)
        grad = _load(grad_ptr + begin, at, mask)
        begin, at, mask = _place(block, tile, N, C, S, ORDER, BC, BP)
        total += grad * _load(f_ptr + begin, at, mask)
    at = split * NC + image * C + c
    tl.store(partial_ptr + at, tl.sum(total, 1), exists)


@triton.jit
def write_gradients_kernel(
    grad_ptr,
    d_f_ptr,
    kept_ptr,
    partial_ptr,
    N,
    C,
    S,
    span,
    ORDER: tl.constexpr,
    VEC: tl.constexpr,
    STAGES: tl.constexpr,
    BC: tl.constexpr,
    BP: tl.constexpr,
):
    """Write df = g Δt + offset."""
    C, S = _sizes(C, S, ORDER, VEC)
    block, first = tl.program_id(0), tl.program_id(1) * span
    image, c, exists = _block(block, C, BC)
    row, NC = image * C + c, N.to(tl.int64) * C
    step = _load(kept_ptr + 3 * NC, row, exists)
    offset = _load(partial_ptr, row, exists)
    for tile in tl.range(
        first, tl.minimum(first + span, tl.cdiv(S, BP)), num_stages=STAGES
    ):
        begin, at, mask = _place(block, tile, N, C, S, ORDER, BC, BP)
        grad = _load(grad_ptr + begin, at, mask)
        d_f = grad * step[:, None] + offset[:, None]
        _store(d_f_ptr + begin, at, d_f, mask)


@triton.jit
def vectors_kernel(
    partial_ptr,
    kept_ptr,
    pair_ptr,
    gate_weight_ptr,
    gate_bias_ptr,
    ie_weight_ptr,
    ie_bias_ptr,
    gate_mean_ptr,
    gate_var_ptr,
    gate_count_ptr,
    N,
    C,
    S,
    splits,
    gate_eps,
    gate_momentum,
    k,
    GATE: tl.constexpr,
    BN: tl.constexpr,
    BC: tl.constexpr,
):
    """Between the forward's passes. GATE: by the batch's statistics."""
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    exists = c < C
    NC = N.to(tl.int64) * C
    f_ptr, z_ptr = kept_ptr + NC, kept_ptr + 2 * NC
    w0 = _load(pair_ptr, 2 * c, exists)[None, :]
    w1 = _load(pair_ptr, 2 * c + 1, exists)[None, :]
    z_mean = tl.zeros([BC], tl.float32)
    square = z_mean
    for first in range(0, N, BN):
        at, mask, here = _images(first, N, C, c, BN)
        x = tl.zeros([BN, BC], tl.float32)
        f = x
        for split in range(splits):
            part = split * NC + at
            x += _load(partial_ptr, part, mask)
            f += _load(partial_ptr + splits * NC, part, mask)
        x /= S
        f /= S
        z = tl.where(mask, w0 * x + w1 * (x + f), 0.0)
        tl.store(kept_ptr + at, x, mask)
        tl.store(f_ptr + at, f, mask)
        tl.store(z_ptr + at, z, mask)
        z_mean, square = _join(z_mean, square, first * 1.0, z, mask, here)
    _choose(
        z_ptr,
        kept_ptr + 3 * NC,
        kept_ptr + 4 * NC,
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
    x_offset_ptr,
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
    GATE: tl.constexpr,
    BN: tl.constexpr,
    BC: tl.constexpr,
):
    """Between the backward's passes. GATE: by the batch's statistics."""
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    exists = c < C
    NC = N.to(tl.int64) * C
    f_ptr, z_ptr = kept_ptr + NC, kept_ptr + 2 * NC
    d_ie_bias = tl.zeros([BC], tl.float32)
    by_z = d_ie_bias
    for first in range(0, N, BN):
        at, mask, _ = _images(first, N, C, c, BN)
        d_step = tl.zeros([BN, BC], tl.float32)
        for split in range(splits):
            d_step += _load(partial_ptr, split * NC + at, mask)
        step = _load(kept_ptr + 3 * NC, at, mask)
        d_logits = d_step * step * (1 - step / k)
        tl.store(partial_ptr + at, d_logits, mask)
        d_ie_bias += tl.sum(d_logits, 0)
        by_z += tl.sum(d_logits * _load(z_ptr, at, mask), 0)
    tl.debug_barrier()  # the stores above are read again

    gate_weight = _load(gate_weight_ptr, c, exists)
    ie_weight = _load(ie_weight_ptr, c, exists)
    slope = gate_weight * ie_weight * _load(kept_ptr + 4 * NC, c, exists)
    w0 = _load(pair_ptr, 2 * c, exists)
    w1 = _load(pair_ptr, 2 * c + 1, exists)
    d_w0 = tl.zeros([BC], tl.float32)
    d_w1 = d_w0
    for first in range(0, N, BN):
        at, mask, _ = _images(first, N, C, c, BN)
        x, f = _load(kept_ptr, at, mask), _load(f_ptr, at, mask)
        d_z = _d_z(
            partial_ptr, z_ptr, at, mask, d_ie_bias, by_z, slope, N, GATE
        )
        d_w0 += tl.sum(d_z * x, 0)
        d_w1 += tl.sum(d_z * (x + f), 0)
        tl.store(partial_ptr + at, d_z * w1[None, :] / S, mask)
        _store(x_offset_ptr, at, d_z * (w0 + w1)[None, :] / S, mask)
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
