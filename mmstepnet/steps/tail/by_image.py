r"""The step as a compiler should read it: every sum is one image's.

A compiler fuses the operations of a step with each other and with their
neighbours, so it needs no kernels of ours. But it fuses only sums over the
same values. A norm sums over the images and pixels of a channel, a gate over
the pixels of an image, and so do their derivatives: each such kind is a pass
over the maps. Here all sums are over the pixels of an image. With M and V the
mean and variance of c there,

.. math::
    \mu = \mathrm{mean}_n M, \quad
    \sigma^2 = \mathrm{mean}_n V + \mathrm{var}_n M, \quad
    \mathrm{GAP}(f) = (M - \mu) a + \beta, \quad
    f \otimes \Delta t = (c - \mu)\,\Delta t\,a + \Delta t\,\beta

with a and β as in :mod:`.function`.
"""

from typing import Any

import torch
from torch import Tensor

from mmstepnet.attentions import choose_step
from mmstepnet.attentions.pooling import EPS
from mmstepnet.precision import accumulation_dtype

from .parts import Norm


def scale_by_image(
    attention: Any,
    x: Tensor,
    c: Tensor,
    how: Norm,
    weight: Tensor,
    bias: Tensor,
) -> Tensor:
    """Scale f = norm(c), which is never formed, by the step Δt.

    Args:
        attention (nn.Module): The channel gate that chooses the step.
        x (Tensor): State x_t, (N, C, H, W).
        c (Tensor): Output of the branch's convolution, likewise.
        how (Norm): What the norm behind it does, in any mode.
        weight (Tensor): Its γ, (C,).
        bias (Tensor): Its β, (C,).

    Returns:
        Tensor: f ⊗ Δt.
    """
    wide = accumulation_dtype(c.dtype)
    weight = weight.to(wide)
    bias = bias.to(wide)
    maps = c.to(wide)
    # Sums are about a value near μ, as a thousand deviations cost digits. No
    # running mean: the backward, which forms the difference again, would read
    # what the forward has moved.
    if how.batch:
        near = maps[0, :, 0].detach().mean(-1)
    else:
        near = how.mean.to(wide)
    maps = maps - near[:, None, None]
    variance, mean = torch.var_mean(maps, (2, 3), correction=0)
    if how.batch:
        var, centre = torch.var_mean(mean, 0, correction=0)
        var = variance.mean(0) + var
        count = c.numel() // len(near)
        how.update(near + centre.detach(), var.detach(), count)
    else:
        var = how.var.to(wide)
        centre = torch.zeros_like(bias)
    a = weight * (var + how.eps).rsqrt()
    f_mean = (mean - centre) * a + bias
    f_var = variance * a.square()
    known = {'f_mean': f_mean, 'f_std': (f_var + EPS).sqrt()}
    step = choose_step(attention, x, maps, known)
    step = step[..., 0, 0]
    scale = step * a
    # μ goes into the vector: a difference of maps would be kept for backward.
    shift = step * bias - centre * scale
    scaled = maps * scale[..., None, None] + shift[..., None, None]
    return scaled.to(c.dtype)
