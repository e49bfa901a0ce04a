"""The passes over the maps of a tail by PyTorch's own operations.

They serve CPUs, and the tests as the oracle of the Triton kernels. No
operation of PyTorch scales each channel of each image in one fast pass, or
sums them about a mean. But a BN in eval mode scales each channel, and its
derivatives for weight and bias are such sums; and N contiguous images of C
channels are one image of N C channels as well, see :func:`_views`.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from mmstepnet.precision import accumulation_dtype

from .function import Norm, TailSpec

ATEN = torch.ops.aten


def forward(
    spec: TailSpec, x: Tensor, c: Tensor, learned: Sequence[Tensor]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Take the tail; running statistics are updated.

    Args:
        spec (TailSpec): What it does.
        x (Tensor): State, (N, C, H, W).
        c (Tensor): Output of the branch's convolution, likewise, in the same
            memory format.
        learned (Sequence): Its parameters, as :class:`.function.Tail` has
            them.

    Returns:
        tuple: The result, and what :func:`backward` needs.
    """
    norm, gate, k, relu = spec
    wide = accumulation_dtype(c.dtype)
    weight, bias, pair_weight, gate_weight, gate_bias, ie_weight, ie_bias = (
        t.to(wide) for t in learned
    )
    mean, var, centred = _moments(norm, c, wide)
    norm.update(mean, var, c.numel() // c.shape[1])
    rstd = (var + norm.eps).rsqrt()
    a = weight * rstd
    x_mean = x.mean((2, 3), dtype=wide)
    pair = torch.stack((x_mean, x_mean + torch.addcmul(bias, centred, a)), 2)
    z = (pair * pair_weight).sum(2)
    running: Any = (
        t if t is None else t.to(wide, copy=gate.batch)
        for t in (gate.mean, gate.var)
    )
    mean_z, var_z = running
    y, *of_batch = torch.native_batch_norm(
        z,
        gate_weight,
        gate_bias,
        mean_z,
        var_z,
        gate.batch,
        gate.momentum,
        gate.eps,
    )
    if gate.count is not None:
        gate.count.add_(1)
        finite = var_z < torch.inf  # as in attentions.base.normalise
        for kept, now in ((gate.mean, mean_z), (gate.var, var_z)):
            kept.copy_(torch.where(finite, now, kept))
    sigmoid = torch.sigmoid(torch.addcmul(ie_bias, y, ie_weight))
    step = sigmoid * k
    scale = step * a
    shift = torch.addcmul(step * bias, mean, scale, value=-1)
    out = _affine(c, scale, shift).add_(x)
    return out.relu_() if relu else out, (
        mean,
        rstd,
        a,
        centred,
        pair,
        z,
        sigmoid,
        step,
        scale,
        mean_z,
        var_z,
        *of_batch,
    )


def backward(
    spec: TailSpec,
    grad: Tensor,
    out: Tensor | None,
    c: Tensor,
    learned: Sequence[Tensor],
    saved: Sequence[Tensor],
) -> tuple[Tensor, Tensor, Sequence[Tensor]]:
    """The derivatives of :func:`forward`.

    Args:
        spec (TailSpec): What the tail does.
        grad (Tensor): Gradient of the result, (N, C, H, W).
        out (Tensor, optional): The result; None where it was not rectified.
        c (Tensor): Output of the branch's convolution.
        learned (Sequence): Its parameters.
        saved (Sequence): What the forward returned.

    Returns:
        tuple: dx, dc and the gradients of the parameters.
    """
    mean, rstd, a, centred, pair, z, sigmoid, step, scale, *of_z = saved
    _, bias, pair_weight, gate_weight, gate_bias, ie_weight, _ = (
        t.to(scale.dtype) for t in learned
    )
    images, pixels = len(c), c.shape[2] * c.shape[3]
    masked = grad if out is None else ATEN.threshold_backward(grad, out, 0)
    total, product = _sums(masked, c, mean)
    d_step = torch.addcmul(total * bias, product, a)
    d_logits = ATEN.sigmoid_backward(d_step * spec.k, sigmoid)
    d_z, by_z, d_ie_bias = ATEN.native_batch_norm_backward(
        d_logits,
        z,
        gate_weight * ie_weight,
        *of_z,
        spec.gate.batch,
        spec.gate.eps,
        (True, True, True),
    )
    d_f = d_z * pair_weight[:, 1]
    d_bias = torch.addcmul(d_f, total, step).sum(0)
    d_weight = torch.addcmul(d_f * centred, product, step).sum(0) * rstd
    per_pixel = a / pixels
    if spec.norm.batch:  # of μ, which σ² does not depend on
        d_f.sub_(d_bias, alpha=1 / images)
    d_c = _affine(masked, scale, d_f * per_pixel)
    slope = d_weight * rstd * per_pixel / -images  # of σ², times 2 / (N S)
    if spec.norm.batch and c.dtype == slope.dtype:  # without cancelling
        d_c.addcmul_(c - mean[:, None, None], slope[:, None, None])
    elif spec.norm.batch:
        d_c.add_(_affine(c, slope, -mean * slope))
    x_offset = (d_z * (pair_weight.sum(1) / pixels)).to(c.dtype)
    d_x = torch.add(
        masked, x_offset[..., None, None], out=None if out is None else masked
    )
    return (
        d_x,
        d_c,
        (
            d_weight,
            d_bias,
            (pair * d_z[..., None]).sum(0),
            by_z * ie_weight,
            d_ie_bias * ie_weight,
            torch.addcmul(d_ie_bias * gate_bias, by_z, gate_weight),
            d_ie_bias,
        ),
    )


@cache
@torch.inference_mode(False)
def constants(
    size: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Zeros and ones; to make them anew takes longer than small maps do."""
    zero = torch.zeros(size, dtype=accumulation_dtype(dtype), device=device)
    return zero, torch.ones_like(zero)


def _views(maps: Tensor, *vectors: Tensor) -> tuple[Sequence[Tensor], ...]:
    """Images of many channels: one of N C, or in channels_last N of C.

    And behind them vectors, (N, C) or (C,), of which each has its part.
    """
    views = (
        (maps.view(1, -1, *maps.shape[2:]),)
        if maps.is_contiguous()
        else maps.split(1)
    )
    return views, *(
        v.expand(maps.shape[:2]).reshape(len(views), -1).unbind()
        for v in vectors
    )


def _moments(norm: Norm, c: Tensor, wide: torch.dtype) -> tuple[Tensor, ...]:
    """μ and σ² as a norm takes them, and M - μ.

    Of a mean of a thousand deviations μ keeps few digits, of the deviations
    from it all: what is left of their mean corrects it.
    """
    if norm.batch and c.is_contiguous():
        centre = c.mean((0, 2, 3), dtype=wide).to(c.dtype)
        apart = c - centre[:, None, None]
        centred = apart.mean((2, 3), dtype=wide)
        rest = centred.mean(0)
        length = torch.linalg.vector_norm(apart, dim=(2, 3), dtype=wide)
        var = length.square().sum(0) / c[:, 0].numel() - rest.square()
        return centre + rest, var, centred - rest
    if norm.batch:
        running = c.new_zeros((2, c.shape[1]), dtype=wide)  # written to
        mean, var = torch.batch_norm_update_stats(c, *running, momentum=0.0)
    else:
        mean, var = norm.mean.to(wide), norm.var.to(wide)
    return mean, var, c.mean((2, 3), dtype=wide) - mean


def _affine(maps: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """``maps * scale + shift``, vectors (N, C) or (C,), in one pass."""
    if maps.dtype == scale.dtype and not maps.is_contiguous():
        return torch.addcmul(
            shift[..., None, None], maps, scale[..., None, None]
        )
    out = torch.empty_like(maps)
    nothing = scale.new_empty(0)  # a view would be written to, too
    for view, weight, bias, result in zip(
        *_views(maps, scale, shift), *_views(out)
    ):
        zero, one = constants(len(bias), bias.dtype, bias.device)
        torch.native_batch_norm(
            view,
            weight,
            bias,
            zero,
            one,
            False,
            0.0,
            0.0,
            out=(result, nothing, nothing),
        )
    return out


def _sums(grad: Tensor, c: Tensor, centre: Tensor) -> tuple[Tensor, Tensor]:
    """Sums over the pixels of g and of g (c - centre), (N, C) each."""
    views, centres = _views(c, centre)
    _, one = constants(len(centres[0]), centre.dtype, c.device)
    found = [
        ATEN.native_batch_norm_backward(
            g,
            view,
            None,
            about,
            one,
            None,
            None,
            False,
            0.0,
            (False, True, True),
        )[:0:-1]
        for g, view, about in zip(*_views(grad), views, centres)
    ]
    total, product = (
        torch.cat(parts).view(c.shape[:2]).to(centre.dtype)
        for parts in zip(*found)
    )
    return total, product
