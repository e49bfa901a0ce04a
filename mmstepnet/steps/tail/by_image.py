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

with a and β as in :mod:`.formulas`.
"""

from typing import Any

import torch
import torch.nn as nn
from torch import Tensor

from mmstepnet.attentions import choose_step
from mmstepnet.attentions.pooling import EPS
from mmstepnet.precision import accumulation_dtype
from mmstepnet.torch_version import is_exporting

from .formulas import update
from .reading import are_all_hooked, read_norm


def scale_by_image(attention: Any, x: Tensor, c: Tensor,
                   norm: nn.Module | None) -> Tensor | None:
    """Scale f = norm(c), which is never formed, by the step Δt.

    Args:
        attention (nn.Module): What chooses the step.
        x (Tensor): State x_t, (N, C, H, W).
        c (Tensor): Output of the branch's convolution, likewise.
        norm (nn.Module, optional): The norm behind it, in any mode.

    Returns:
        Tensor: f ⊗ Δt; None where the attention is no channel gate or the
        norm no BN, and for exporters, who know BN and pooling by name.
    """
    count = c.numel() // c.shape[1]
    read = None if is_exporting() or are_all_hooked() or c.ndim != 4 else (
        read_norm(norm, nn.BatchNorm2d, c.shape[1], count))
    if read is None or not isinstance(
            getattr(attention, 'pooled', None), tuple):
        return None
    wide, (how, weight, bias) = accumulation_dtype(c.dtype), read
    var: Any = None if how.var is None else how.var.to(wide)
    weight, bias = weight.to(wide), bias.to(wide)
    # Sums are about the running mean, which costs no digits to take off.
    near = torch.zeros_like(bias) if how.mean is None else how.mean.to(wide)
    maps, centre = c.to(wide) - near[:, None, None], torch.zeros_like(bias)
    variance, mean = torch.var_mean(maps, (2, 3), correction=0)
    if how.batch:
        var, centre = torch.var_mean(mean, 0, correction=0)
        var = variance.mean(0) + var
        update(how, near + centre.detach(), var.detach(), count)
    a = weight * (var + how.eps).rsqrt()
    step = choose_step(attention, x, maps, {
        'f_mean': (mean - centre) * a + bias,
        'f_std': (variance * a.square() + EPS).sqrt()})[..., 0, 0]
    scale = step * a
    # The derivative of μ is taken on vectors; on maps it is one more pass.
    fixed = centre.detach()
    shift = step * bias - (centre - fixed) * scale
    away = maps - fixed[:, None, None]
    return (away * scale[..., None, None] + shift[..., None, None]).to(c.dtype)
