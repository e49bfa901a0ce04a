r"""StepNet's tail between its passes over the maps: vectors, by hand.

With c the output of the branch's convolution and x the state, for each image
n and channel, the passes give the means X of x and M of c, and v, the mean of
(c - M)^2 over the pixels. Then, with N images and S pixels,

.. math::
    \mu &= \mathrm{mean}_n M, \quad
    \sigma^2 = \mathrm{mean}_n (v + (M - \mu)^2), \quad
    r = (\sigma^2 + \epsilon)^{-1/2}, \quad a = \gamma r \\
    F &= (M - \mu) a + \beta \quad (= \mathrm{GAP}(f)), \qquad
    z = w_0 X + w_1 (X + F) \\
    \hat z &= (z - m) \rho, \quad y = \hat z\, \gamma' + \beta', \quad
    \Delta t = k\, \sigma(W_{IE}\, y + b_{IE}) \\
    x_{t+1} &= \mathrm{relu}(x + (c - \mu)\,\mathrm{scale} +
    \mathrm{shift}), \quad \mathrm{scale} = \Delta t\, a, \quad
    \mathrm{shift} = \Delta t\, \beta

where m and ρ are mean and 1/deviation of z over the images. Each of both
norms may take its running statistics in place of the batch's, and either may
be missing: without the block's norm f = c, and a folded gate is
k σ(z + b_IE). Backward, with g the gradient where the result is positive, the
passes give G = Σ g and P = Σ g (c - μ) over the pixels, hence Σ g f = P a +
G β, from which all other derivatives follow. They end in

.. math::
    \mathrm{d}x = g + \mathrm{d}X / S, \qquad
    \mathrm{d}c = g\,\mathrm{scale} + (c - \mu)\,\mathrm{slope} +
    \mathrm{offset}

StepNet: ICCV 2023, §2.5 and Appendix F.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

ATEN = torch.ops.aten


class TailSpec(NamedTuple):
    """What a tail does, beside the tensors that it does it with.

    A norm is ``'batch'`` (it takes the batch's statistics), ``'running'``
    (it takes its running ones) or ``'none'``. With a momentum of None a
    forward pass leaves the running statistics alone.
    """

    norm: str
    norm_eps: float
    norm_momentum: float | None
    gate: str
    gate_eps: float
    gate_momentum: float | None
    gate_scale: float
    relu: bool


class Learned(NamedTuple):
    """Parameters, (C,) each, the pair's (C, 2). None where a norm is none."""

    norm_weight: Tensor | None
    norm_bias: Tensor | None
    pair_weight: Tensor
    gate_weight: Tensor | None
    gate_bias: Tensor | None
    ie_weight: Tensor | None
    ie_bias: Tensor


class Running(NamedTuple):
    """Running statistics that a norm takes, or updates; else None."""

    mean: Tensor | None = None
    var: Tensor | None = None
    count: Tensor | None = None


class Batch(NamedTuple):
    """Statistics of a batch: mean and variance, (C,), M - μ, (N, C)."""

    mean: Tensor
    var: Tensor
    centred: Tensor
    count: int


class Saved(NamedTuple):
    """What :func:`backward` needs of :func:`forward`, (C,) or (N, C)."""

    mean: Tensor | None
    rstd: Tensor | None
    a: Tensor | None
    centred: Tensor | None
    pair: Tensor
    """X and X + F, (N, C, 2)."""
    z: Tensor
    z_mean: Tensor | None
    z_rstd: Tensor | None
    y: Tensor | None
    sigmoid: Tensor
    step: Tensor
    scale: Tensor


class Gradients(NamedTuple):
    """Coefficients of dx and dc. ``slope`` is (C,), None is 0."""

    scale: Tensor
    slope: Tensor | None
    offset: Tensor
    x_offset: Tensor


def forward(spec: TailSpec, learned: Learned, norm_running: Running,
            gate_running: Running, x_mean: Tensor, c_mean: Tensor,
            batch: Batch | None,
            ) -> tuple[Tensor, Tensor | None, Saved]:
    """From pooled values to the coefficients of the result.

    Args:
        spec (TailSpec): What the tail does.
        learned (Learned): Its parameters, in the dtype of the sums.
        norm_running (Running): Of the block's norm.
        gate_running (Running): Of the gate's.
        x_mean (Tensor): X, (N, C).
        c_mean (Tensor): M, (N, C).
        batch (Batch, optional): None if the block's norm does not take it.

    Returns:
        tuple: Scale, (N, C), and shift, (N, C), or None without the block's
        norm, and what the backward needs.
    """
    wide = x_mean.dtype
    mean = rstd = a = centred = None
    f_mean = c_mean
    if spec.norm != 'none':
        mean, var, centred, _ = batch or (
            *widen(norm_running[:2], wide), None, None)
        rstd = (var + spec.norm_eps).rsqrt()
        a = learned.norm_weight * rstd
        centred = c_mean - mean if centred is None else centred
        f_mean = torch.addcmul(learned.norm_bias, centred, a)
        if spec.norm_momentum is not None:
            _move(norm_running, spec.norm_momentum, batch)
    pair = torch.stack((x_mean, x_mean + f_mean), 2)
    z = (pair * learned.pair_weight).sum(2)
    z_mean = z_rstd = y = None
    if spec.gate == 'none':
        sigmoid = torch.sigmoid(z + learned.ie_bias)
    else:
        moved = widen(gate_running[:2], wide)
        y, z_mean, z_rstd = torch.native_batch_norm(
            z, learned.gate_weight, learned.gate_bias, *moved,
            spec.gate == 'batch', spec.gate_momentum or 0., spec.gate_eps)
        sigmoid = torch.sigmoid(
            torch.addcmul(learned.ie_bias, y, learned.ie_weight))
        if spec.gate_momentum is not None:
            gate_running.count.add_(1)
            if gate_running.mean.dtype != wide:
                gate_running.mean.copy_(moved[0])
                gate_running.var.copy_(moved[1])
    step = sigmoid * spec.gate_scale if spec.gate_scale != 1 else sigmoid
    scale, shift = step, None
    if a is not None:
        scale, shift = step * a, step * learned.norm_bias
    return scale, shift, Saved(mean, rstd, a, centred, pair, z, z_mean,
                               z_rstd, y, sigmoid, step, scale)


def _move(running: Running, momentum: float, batch: Batch) -> None:
    """Move running statistics towards a batch's, as BN does."""
    var = batch.var * (batch.count / (batch.count - 1))
    running.mean.lerp_(batch.mean.to(running.mean.dtype), momentum)
    running.var.lerp_(var.to(running.var.dtype), momentum)
    running.count.add_(1)


def backward(spec: TailSpec, learned: Learned, gate_running: Running,
             saved: Saved, total: Tensor, product: Tensor,
             pixels: int) -> tuple[Gradients, Learned]:
    """The derivatives of :func:`forward`.

    Args:
        spec (TailSpec): What the tail does.
        learned (Learned): Its parameters, in the dtype of the sums.
        gate_running (Running): What the gate's norm took, if these.
        saved (Saved): What the forward returned.
        total (Tensor): G, (N, C).
        product (Tensor): P, (N, C).
        pixels (int): S.

    Returns:
        tuple: The coefficients of dx and dc, and the gradients of the
        parameters.
    """
    images = len(total)
    (_, rstd, a, centred, pair, z, z_mean, z_rstd, y, sigmoid, step,
     scale) = saved
    d_step = product if a is None else torch.addcmul(
        total * learned.norm_bias, product, a)
    if spec.gate_scale != 1:
        d_step = d_step * spec.gate_scale
    d_z = d_logits = ATEN.sigmoid_backward(d_step, sigmoid)
    d_gate_weight = d_gate_bias = d_ie_weight = None
    if y is not None:
        d_ie_weight = (d_logits * y).sum(0)
        d_z, d_gate_weight, d_gate_bias = ATEN.native_batch_norm_backward(
            d_logits * learned.ie_weight, z, learned.gate_weight,
            *widen(gate_running[:2], z.dtype), z_mean, z_rstd,
            spec.gate == 'batch', spec.gate_eps, (True, True, True))
    d_pair = (pair * d_z[..., None]).sum(0)
    x_offset = d_z * (learned.pair_weight.sum(1) / pixels)
    d_f = d_z * learned.pair_weight[:, 1]
    slope = d_weight = d_bias = None
    if a is None:
        offset = d_f / pixels
    else:
        d_bias = torch.addcmul(d_f, total, step).sum(0)
        d_weight = torch.addcmul(
            d_f * centred, product, step).sum(0) * rstd
        if spec.norm == 'batch':
            # Of σ², times 2 / (N S); and of μ, which σ² does not depend on.
            slope = d_weight * (a * rstd / (-images * pixels))
            d_f = d_f.sub_(d_bias, alpha=1 / images)
        offset = d_f * (a / pixels)
    return Gradients(scale, slope, offset, x_offset), Learned(
        d_weight, d_bias, d_pair, d_gate_weight, d_gate_bias, d_ie_weight,
        d_logits.sum(0))


def widen(tensors: Iterable[Tensor | None],
          dtype: torch.dtype) -> list[Tensor | None]:
    """Bring tensors to the dtype that sums are formed in."""
    return [t if t is None or t.dtype == dtype else t.to(dtype)
            for t in tensors]
