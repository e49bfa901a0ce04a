"""The passes over the maps of a tail by PyTorch's own operations.

They serve CPUs, and the tests as the oracle of the Triton kernels. No
operation of PyTorch scales each channel of each image in one fast pass, or
sums them about a mean. But a BN in eval mode scales each channel, and its
derivatives for weight and bias are such sums; and N contiguous images of C
channels are one image of N C channels as well, see :func:`_views`.
"""

from collections.abc import Iterator, Sequence
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
    weights = TailWeights(*widened(learned, wide))
    bias = weights.norm_bias
    mean, var, centred = _moments(norm, c, wide)
    values = c.numel() // c.shape[1]
    norm.update(mean, var, values)
    rstd = (var + norm.eps).rsqrt()
    a = weights.norm_weight * rstd
    x_mean = x.mean((2, 3), dtype=wide)
    f_mean = torch.addcmul(bias, centred, a)
    chosen = choose(spec.gate, spec.k, weights.gate, x_mean, f_mean)
    step = chosen.step
    scale = step * a
    shift = torch.addcmul(step * bias, mean, scale, value=-1)
    out = affine(c, scale, shift)
    out.add_(x)
    if spec.relu:
        out.relu_()
    kept = Kept(mean, rstd, a, centred, scale)
    return out, (*kept, *chosen)


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
    kept = Kept(*saved[:5])
    chosen = Chosen(*saved[5:])
    weights = TailWeights(*widened(learned, kept.scale.dtype))
    bias = weights.norm_bias
    images = len(c)
    pixels = c.shape[2] * c.shape[3]
    masked = grad
    if out is not None:
        masked = ATEN.threshold_backward(grad, out, 0)
    total, product = sums(masked, c, kept.mean)
    d_step = torch.addcmul(total * bias, product, kept.a)
    d_z, d_gate = choose_gradients(
        spec.gate, spec.k, weights.gate, chosen, d_step
    )
    d_f = d_z * weights.pair[:, 1]
    of_images = torch.addcmul(d_f, total, chosen.step)
    d_bias = of_images.sum(0)
    of_images = torch.addcmul(d_f * kept.centred, product, chosen.step)
    d_weight = of_images.sum(0) * kept.rstd
    per_pixel = kept.a / pixels
    if spec.norm.batch:  # of μ, which σ² does not depend on
        d_f.sub_(d_bias, alpha=1 / images)
    d_c = affine(masked, kept.scale, d_f * per_pixel)
    # Of σ², times 2 / (N S).
    slope = d_weight * kept.rstd * per_pixel / -images
    if spec.norm.batch and c.dtype == slope.dtype:  # without cancelling
        centred = c - kept.mean[:, None, None]
        d_c.addcmul_(centred, slope[:, None, None])
    elif spec.norm.batch:
        shift = -kept.mean * slope
        d_c.add_(affine(c, slope, shift))
    x_offset = d_z * (weights.pair.sum(1) / pixels)
    d_x = torch.add(
        masked,
        x_offset.to(c.dtype)[..., None, None],
        out=None if out is None else masked,
    )
    return d_x, d_c, (d_weight, d_bias, *d_gate)


def widened(vectors: Sequence[Tensor], wide: torch.dtype) -> Iterator[Tensor]:
    """Vectors in the dtype of sums."""
    for vector in vectors:
        yield vector.to(wide)


def choose(
    gate: Norm, k: float, weights: GateWeights, x_mean: Tensor, f_mean: Tensor
) -> Chosen:
    """Choose Δt as :func:`.parts.choose_by_formula` does.

    Running statistics are updated.
    """
    pair = torch.stack((x_mean, x_mean + f_mean), 2)
    z = (pair * weights.pair).sum(2)
    mean: Any = gate.mean
    var: Any = gate.var
    if mean is not None:
        mean = mean.to(z.dtype, copy=gate.batch)
        var = var.to(z.dtype, copy=gate.batch)
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
        assert mean is not None
        gate.count.add_(1)
        finite = var < torch.inf  # as in attentions.base.normalise
        gate.mean.copy_(torch.where(finite, mean, gate.mean))
        gate.var.copy_(torch.where(finite, var, gate.var))
    logits = torch.addcmul(weights.ie_bias, y, weights.ie_weight)
    sigmoid = torch.sigmoid(logits)
    step = sigmoid * k
    return Chosen(pair, z, sigmoid, step, mean, var, *of_batch)


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
    ie_weight = weights.ie_weight
    d_z, by_z, d_ie_bias = ATEN.native_batch_norm_backward(
        d_logits,
        chosen.z,
        weights.weight * ie_weight,
        chosen.mean,
        chosen.var,
        chosen.batch_mean,
        chosen.batch_rstd,
        gate.batch,
        gate.eps,
        (True, True, True),
    )
    by_bias = d_ie_bias * weights.bias
    d_pair = chosen.pair * d_z[..., None]
    return d_z, GateWeights(
        pair=d_pair.sum(0),
        weight=by_z * ie_weight,
        bias=d_ie_bias * ie_weight,
        ie_weight=torch.addcmul(by_bias, by_z, weights.weight),
        ie_bias=d_ie_bias,
    )


def try_out(passes: Any, device: Any) -> list[Tensor]:
    """Results and gradients of such passes over small maps, on the CPU."""
    maps = [(2, 5, 3, 3)] * 3
    vectors = [(5,)] * 4
    x, c, grad, *learned = small_tensors(
        device, *maps, (5,), (5,), (5, 2), *vectors
    )
    results: list[Tensor] = []
    for norm in small_norms(c):
        spec = TailSpec(norm, norm, 1.5, True)
        out, saved = passes.forward(spec, x, c, learned)
        d_x, d_c, found = passes.backward(spec, grad, out, c, learned, saved)
        results += out, d_x, d_c, *found
    return [t.cpu() for t in results]


def small_norms(like: Tensor) -> tuple[Norm, Norm]:
    """A norm by the batch, and one by running statistics, of five channels."""
    zero, one = constants(5, like.dtype, like.device)
    return Norm(True, 1e-5), Norm(False, 1e-5, zero, one)


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
    wide = accumulation_dtype(dtype)
    zero = torch.zeros(size, dtype=wide, device=device)
    one = torch.ones_like(zero)
    return zero, one


def _views(maps: Tensor, *vectors: Tensor) -> tuple[Sequence[Tensor], ...]:
    """Images of many channels: one of N C, or in channels_last N of C.

    And behind them vectors, (N, C) or (C,), of which each has its part.
    """
    views: Sequence[Tensor]
    if maps.is_contiguous():
        views = (maps.view(1, -1, *maps.shape[2:]),)
    else:
        views = maps.split(1)
    parts = [views]
    for vector in vectors:
        vector = vector.expand(maps.shape[:2])
        vector = vector.reshape(len(views), -1)
        parts.append(vector.unbind())
    return tuple(parts)


def _moments(norm: Norm, c: Tensor, wide: torch.dtype) -> tuple[Tensor, ...]:
    """μ and σ² as a norm takes them, and M - μ.

    Of a mean of a thousand deviations μ keeps few digits, of the deviations
    from it all: what is left of their mean corrects it.
    """
    pixels = 2, 3
    if norm.batch and c.is_contiguous():
        centre = c.mean((0, 2, 3), dtype=wide)
        centre = centre.to(c.dtype)
        apart = c - centre[:, None, None]
        centred = apart.mean(pixels, dtype=wide)
        rest = centred.mean(0)
        length = torch.linalg.vector_norm(apart, dim=pixels, dtype=wide)
        squares = length.square().sum(0)
        values = c[:, 0].numel()
        var = squares / values - rest.square()
        return centre + rest, var, centred - rest
    if norm.batch:
        running = c.new_zeros((2, c.shape[1]), dtype=wide)  # written to
        mean, var = torch.batch_norm_update_stats(c, *running, momentum=0.0)
    else:
        mean = norm.mean.to(wide)
        var = norm.var.to(wide)
    centred = c.mean(pixels, dtype=wide) - mean
    return mean, var, centred


def affine(
    maps: Tensor, scale: Tensor, shift: Tensor, out: Tensor | None = None
) -> Tensor:
    """``maps * scale + shift``, vectors (N, C) or (C,), in one pass."""
    if maps.dtype == scale.dtype and not maps.is_contiguous():
        return torch.addcmul(
            shift[..., None, None], maps, scale[..., None, None], out=out
        )
    out = torch.empty_like(maps) if out is None else out
    (results,) = _views(out)
    views, scales, shifts = _views(maps, scale, shift)
    nothing = scale.new_empty(0)  # a view would be written to, too
    zero, one = constants(len(shifts[0]), shift.dtype, shift.device)
    for view, weight, bias, result in zip(views, scales, shifts, results):
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
    (gradients,) = _views(grad)
    _, one = constants(len(centres[0]), centre.dtype, c.device)
    totals = []
    products = []
    for g, view, about in zip(gradients, views, centres):
        _, product, total = ATEN.native_batch_norm_backward(
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
        )
        totals.append(total)
        products.append(product)
    shape = c.shape[:2]
    total = torch.cat(totals).view(shape)
    product = torch.cat(products).view(shape)
    wide = centre.dtype
    return total.to(wide), product.to(wide)
