"""The passes over the maps of a tail by PyTorch's own operations.

They serve CPUs, and the tests as the oracle of the Triton kernels. No
operation of PyTorch scales each channel of each image in one fast pass, or
sums them about a mean. But a BN in eval mode scales each channel, and its
derivatives for weight and bias are such sums; and N contiguous images of C
channels are one image of N C channels as well, see :func:`_views`.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mmstepnet.precision import accumulation_dtype

from .parts import GateWeights, Norm, TailSpec, TailWeights

ATEN = torch.ops.aten


class Chosen(NamedTuple):
    """What a gate has chosen, and what its derivatives are made of."""

    pair: Tensor
    """X and X + F, (N, C, 2)."""
    z: Tensor
    """(N, C)."""
    sigmoid: Tensor
    """(N, C)."""
    step: Tensor
    """Δt, (N, C)."""
    mean: Tensor | None
    """Running mean of the gate's BN, (C,)."""
    var: Tensor | None
    batch_mean: Tensor
    """What the BN has taken of the batch, (C,)."""
    batch_rstd: Tensor


class Kept(NamedTuple):
    """What a tail keeps for its backward, beside maps and the gate's."""

    mean: Tensor
    """μ, (C,)."""
    rstd: Tensor
    """r, (C,)."""
    a: Tensor
    """a, (C,)."""
    centred: Tensor
    """M - μ, (N, C)."""
    scale: Tensor
    """Δt a, (N, C)."""


def forward(
    spec: TailSpec, x: Tensor, c: Tensor, learned: Sequence[Tensor]
) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """Take the tail; running statistics are updated.

    Args:
        spec (TailSpec): What it does.
        x (Tensor): State, (N, C, H, W).
        c (Tensor): Output of the branch's convolution, likewise, in the same
            memory format.
        learned (Sequence): Its :class:`TailWeights`.

    Returns:
        tuple: The result, and what :func:`backward` needs.
    """
    norm = spec.norm
    wide = accumulation_dtype(c.dtype)
    weights = TailWeights(*(t.to(wide) for t in learned))
    mean, var, centred = _moments(norm, c, wide)
    norm.update(mean, var, c.numel() // c.shape[1])
    rstd = (var + norm.eps).rsqrt()
    a = weights.norm_weight * rstd
    chosen = choose(
        spec.gate,
        spec.k,
        weights.gate,
        x.mean((2, 3), dtype=wide),
        torch.addcmul(weights.norm_bias, centred, a),
    )
    scale = chosen.step * a
    shift = torch.addcmul(
        chosen.step * weights.norm_bias, mean, scale, value=-1
    )
    out = affine(c, scale, shift).add_(x)
    kept = Kept(mean, rstd, a, centred, scale)
    return out.relu_() if spec.relu else out, (*kept, *chosen)


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
        learned (Sequence): Its :class:`TailWeights`.
        saved (Sequence): What the forward returned.

    Returns:
        tuple: dx, dc and the gradients of what is learned.
    """
    kept, chosen = Kept(*saved[:5]), Chosen(*saved[5:])
    weights = TailWeights(*(t.to(kept.scale.dtype) for t in learned))
    images, pixels = len(c), c.shape[2] * c.shape[3]
    masked = grad if out is None else ATEN.threshold_backward(grad, out, 0)
    total, product = sums(masked, c, kept.mean)
    d_z, d_gate = choose_gradients(
        spec.gate,
        spec.k,
        weights.gate,
        chosen,
        torch.addcmul(total * weights.norm_bias, product, kept.a),
    )
    d_f = d_z * weights.pair[:, 1]
    d_bias = torch.addcmul(d_f, total, chosen.step).sum(0)
    d_weight = torch.addcmul(d_f * kept.centred, product, chosen.step).sum(0)
    d_weight = d_weight * kept.rstd
    per_pixel = kept.a / pixels
    if spec.norm.batch:  # of μ, which σ² does not depend on
        d_f.sub_(d_bias, alpha=1 / images)
    d_c = affine(masked, kept.scale, d_f * per_pixel)
    # Of σ², times 2 / (N S).
    slope = d_weight * kept.rstd * per_pixel / -images
    if spec.norm.batch and c.dtype == slope.dtype:  # without cancelling
        d_c.addcmul_(c - kept.mean[:, None, None], slope[:, None, None])
    elif spec.norm.batch:
        d_c.add_(affine(c, slope, -kept.mean * slope))
    x_offset = (d_z * (weights.pair.sum(1) / pixels)).to(c.dtype)
    d_x = torch.add(
        masked, x_offset[..., None, None], out=None if out is None else masked
    )
    return d_x, d_c, (d_weight, d_bias, *d_gate)


def choose(
    gate: Norm, k: float, weights: GateWeights, x_mean: Tensor, f_mean: Tensor
) -> Chosen:
    """Choose Δt as :func:`.parts.choose_by_formula` does.

    Running statistics are updated.
    """
    pair = torch.stack((x_mean, x_mean + f_mean), 2)
    z = (pair * weights.pair).sum(2)
    running: Any = (
        t if t is None else t.to(z.dtype, copy=gate.batch)
        for t in (gate.mean, gate.var)
    )
    mean, var = running
    y, *of_batch = torch.native_batch_norm(
        z,
        weights.weight,
        weights.bias,
        mean,
        var,
        gate.batch,
        gate.momentum,
        gate.eps,
    )
    if gate.count is not None:
        gate.count.add_(1)
        finite = var < torch.inf  # as in attentions.base.normalise
        for kept, now in ((gate.mean, mean), (gate.var, var)):
            kept.copy_(torch.where(finite, now, kept))
    sigmoid = torch.sigmoid(
        torch.addcmul(weights.ie_bias, y, weights.ie_weight)
    )
    return Chosen(pair, z, sigmoid, sigmoid * k, mean, var, *of_batch)


def choose_gradients(
    gate: Norm, k: float, weights: GateWeights, chosen: Chosen, d_step: Tensor
) -> tuple[Tensor, GateWeights]:
    """The derivatives of :func:`choose`.

    Args:
        gate (Norm): That of the gate.
        k (float): What its sigmoid is multiplied by.
        weights (GateWeights): What is learned.
        chosen (Chosen): What :func:`choose` returned.
        d_step (Tensor): Gradient of Δt, (N, C).

    Returns:
        tuple: dz, (N, C), and the gradients of what is learned.
    """
    d_logits = ATEN.sigmoid_backward(d_step * k, chosen.sigmoid)
    d_z, by_z, d_ie_bias = ATEN.native_batch_norm_backward(
        d_logits,
        chosen.z,
        weights.weight * weights.ie_weight,
        *chosen[4:],
        gate.batch,
        gate.eps,
        (True, True, True),
    )
    return d_z, GateWeights(
        pair=(chosen.pair * d_z[..., None]).sum(0),
        weight=by_z * weights.ie_weight,
        bias=d_ie_bias * weights.ie_weight,
        ie_weight=torch.addcmul(
            d_ie_bias * weights.bias, by_z, weights.weight
        ),
        ie_bias=d_ie_bias,
    )


def try_out(passes: Any, device: Any) -> list[Tensor]:
    """Results and gradients of such passes over small maps, on the CPU."""
    spec = TailSpec(Norm(True, 1e-5), Norm(True, 1e-5), 1.5, True)
    x, c, grad, *learned = small_tensors(
        device, *[(2, 5, 3, 3)] * 3, (5,), (5,), (5, 2), *[(5,)] * 4
    )
    out, saved = passes.forward(spec, x, c, learned)
    *maps, found = passes.backward(spec, grad, out, c, learned, saved)
    return [t.cpu() for t in (out, *maps, *found)]


def small_tensors(device: Any, *shapes: tuple[int, ...]) -> list[Tensor]:
    """Normal numbers, the same on every device."""
    random = torch.Generator().manual_seed(0)
    return [
        torch.randn(shape, generator=random, device='cpu').to(device)
        for shape in shapes
    ]


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


def affine(
    maps: Tensor, scale: Tensor, shift: Tensor, out: Tensor | None = None
) -> Tensor:
    """``maps * scale + shift``, vectors (N, C) or (C,), in one pass."""
    if maps.dtype == scale.dtype and not maps.is_contiguous():
        return torch.addcmul(
            shift[..., None, None], maps, scale[..., None, None], out=out
        )
    out = torch.empty_like(maps) if out is None else out
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


def sums(grad: Tensor, c: Tensor, centre: Tensor) -> tuple[Tensor, Tensor]:
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
