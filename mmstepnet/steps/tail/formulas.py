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
norms may take its running statistics in place of the batch's. One that is
missing is one that changes nothing: of running statistics 0 and 1 and ε = 0.
Backward, with g the gradient where the result is positive, the
passes give G = Σ g and P = Σ g (c - μ) over the pixels, hence Σ g f = P a +
G β, from which all other derivatives follow. They end in

.. math::
    \mathrm{d}x = g + \mathrm{d}X / S, \qquad
    \mathrm{d}c = g\,\mathrm{scale} + (c - \mu)\,\mathrm{slope} +
    \mathrm{offset}

StepNet: ICCV 2023, §2.5 and Appendix F.
"""

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

ATEN = torch.ops.aten


class Norm(NamedTuple):
    """How a BN normalises."""

    batch: bool
    """By the statistics of the batch; else by its running ones."""
    eps: float
    mean: Any = None
    """Running mean, a tensor (C,); None where it is not taken or updated."""
    var: Any = None
    count: Tensor | None = None
    """Of batches seen; None where no running statistics are updated."""
    momentum: float = 0.


class TailSpec(NamedTuple):
    """What a tail does, beside the tensors that may have gradients."""

    norm: Norm
    gate: Norm
    k: float
    relu: bool

    @property
    def running(self) -> list[Tensor | None]:
        """Mean and variance of both norms, None for those of the batch.

        Statistics that a pass has updated are no input of its backward.
        """
        return [None if norm.batch else t for norm in self[:2]
                for t in (norm.mean, norm.var)]


class Parameters(NamedTuple):
    """What a tail learns, or its gradients: (C,) each, the pair (C, 2)."""

    weight: Tensor
    bias: Tensor
    pair: Tensor
    gate_weight: Tensor
    gate_bias: Tensor
    ie_weight: Tensor
    ie_bias: Tensor


class Saved(NamedTuple):
    """What :func:`backward` needs of :func:`forward`, (C,) or (N, C)."""

    mean: Tensor
    rstd: Tensor
    a: Tensor
    centred: Tensor
    pair: Tensor
    """X and X + F, (N, C, 2)."""
    z: Tensor
    z_mean: Tensor
    z_rstd: Tensor
    """Where z is normalised by running statistics, the variance."""
    sigmoid: Tensor
    step: Tensor
    scale: Tensor


def forward(spec: TailSpec, learned: Parameters, x_mean: Tensor, mean: Tensor,
            var: Tensor, centred: Tensor,
            count: int) -> tuple[Tensor, Tensor, Saved]:
    """From pooled values to the coefficients of the result.

    Args:
        spec (TailSpec): What the tail does. Running statistics are updated.
        learned (Parameters): Its parameters, in the dtype of the sums.
        x_mean (Tensor): X, (N, C).
        mean (Tensor): μ, (C,).
        var (Tensor): σ^2, (C,).
        centred (Tensor): M - μ, (N, C).
        count (int): N S.

    Returns:
        tuple: Scale and shift, (N, C), and what the backward needs.
    """
    norm, gate, k, _ = spec
    rstd = (var + norm.eps).rsqrt()
    a = learned.weight * rstd
    update(norm, mean, var, count)
    f_mean = torch.addcmul(learned.bias, centred, a)
    pair = torch.stack((x_mean, x_mean + f_mean), 2)
    z = (pair * learned.pair).sum(2)
    mean_z: Any
    var_z: Any
    mean_z, var_z = (t if t is None else t.to(z.dtype, copy=gate.batch)
                     for t in (gate.mean, gate.var))
    y, z_mean, z_rstd = torch.native_batch_norm(
        z, learned.gate_weight, learned.gate_bias, mean_z, var_z, gate.batch,
        gate.momentum, gate.eps)
    if not gate.batch:
        z_mean, z_rstd = mean_z, var_z
    elif gate.count is not None:
        gate.count.add_(1)
        finite = var_z < torch.inf  # as in attentions.base.normalise
        for running, now in ((gate.mean, mean_z), (gate.var, var_z)):
            running.copy_(torch.where(finite, now, running))
    sigmoid = torch.sigmoid(
        torch.addcmul(learned.ie_bias, y, learned.ie_weight))
    step = sigmoid * k
    scale = step * a
    return scale, step * learned.bias, Saved(
        mean, rstd, a, centred, pair, z, z_mean, z_rstd, sigmoid, step, scale)


def backward(spec: TailSpec, learned: Parameters, saved: Saved,
             total: Tensor, product: Tensor, pixels: int) -> tuple[
                 Tensor | None, Tensor, Tensor, Parameters]:
    """The derivatives of :func:`forward`.

    Args:
        spec (TailSpec): What the tail does.
        learned (Parameters): Its parameters, in the dtype of the sums.
        saved (Saved): What the forward returned.
        total (Tensor): G, (N, C).
        product (Tensor): P, (N, C).
        pixels (int): S.

    Returns:
        tuple: Slope, (C,), or None for 0, offset and dX / S, (N, C), and the
        gradients of the parameters.
    """
    (_, rstd, a, centred, pair, z, z_mean, z_rstd, sigmoid, step, _) = saved
    _, bias, pair_weight, gate_weight, gate_bias, ie_weight, _ = learned
    images = len(total)
    d_step = torch.addcmul(total * bias, product, a)
    d_logits = ATEN.sigmoid_backward(d_step * spec.k, sigmoid)
    # Of both pairs of statistics it takes the one that its mode asks for.
    d_z, by_z, d_ie_bias = ATEN.native_batch_norm_backward(
        d_logits, z, gate_weight * ie_weight, z_mean, z_rstd, z_mean, z_rstd,
        spec.gate.batch, spec.gate.eps, (True, True, True))
    d_f = d_z * pair_weight[:, 1]
    d_bias = torch.addcmul(d_f, total, step).sum(0)
    d_weight = torch.addcmul(d_f * centred, product, step).sum(0) * rstd
    x_offset = d_z * (pair_weight.sum(1) / pixels)
    slope, per_pixel = None, a / pixels
    if spec.norm.batch:
        # Of σ², times 2 / (N S); and of μ, which σ² does not depend on.
        slope = d_weight * rstd * per_pixel / -images
        d_f.sub_(d_bias, alpha=1 / images)
    return slope, d_f * per_pixel, x_offset, Parameters(
        d_weight, d_bias, (pair * d_z[..., None]).sum(0), by_z * ie_weight,
        d_ie_bias * ie_weight,
        torch.addcmul(d_ie_bias * gate_bias, by_z, gate_weight), d_ie_bias)


@cache
def constants(size: int, dtype: torch.dtype,
              device: torch.device) -> tuple[Tensor, Tensor]:
    """Zeros and ones; to make them anew takes longer than small maps do."""
    with torch.inference_mode(False):
        return (torch.zeros(size, dtype=dtype, device=device),
                torch.ones(size, dtype=dtype, device=device))


def update(norm: Norm, mean: Tensor, var: Tensor, count: int) -> None:
    """Move a BN's running statistics towards those of so many values."""
    if norm.count is not None:
        kind, part = norm.mean.dtype, norm.momentum / (count - 1)
        norm.mean.lerp_(mean.to(kind), norm.momentum)
        norm.var.lerp_(var.to(kind), norm.momentum).add_(var, alpha=part)
        norm.count.add_(1)
