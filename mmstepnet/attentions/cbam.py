"""Convolutional block attention.

CBAM: Convolutional Block Attention Module, ECCV 2018,
https://arxiv.org/abs/1807.06521
"""

import torch
import torch.nn as nn
from torch import Tensor

from .base import ATTENTIONS, MapAttention, normalise_maps
from .pooling import full_precision, pool, weight_dtype
from .se import SE
from .zero_start import ZeroBatchNorm2d


@ATTENTIONS.register
class CBAM(MapAttention):
    r"""Product of a channel gate and a spatial gate.

    .. math::
        M_c &= \sigma(\mathrm{MLP}(\mathrm{GAP}(f)) + \mathrm{MLP}(
        \mathrm{GMP}(f))), \qquad f' = f \otimes M_c \\
        M_s &= \sigma(\mathrm{BN}(\mathrm{Conv}_{7 \times 7}([\mathrm{mean}_c
        f';\ \mathrm{max}_c f']))), \qquad \Delta t = M_c \otimes M_s

    with global average (GAP) and maximum (GMP) pooling, one perceptron of two
    biased layers shared by both, and a convolution without bias. BN behind
    it, with momentum 0.01, stands in the authors' code, not in the paper.

    Args:
        channels (int): Channels C.
        reduction (int): The perceptron has ``max(C // reduction, 1)`` hidden
            units. Defaults to 16, as in the paper.
        init_step (float, optional): See :class:`Attention`. The perceptron's
            last layer and BN's weight start at zero and the product is
            scaled by ``init_step / 0.25``. Defaults to None.
    """

    initial_logits = (0.0, 0.0)
    recorded = ('reduction',)

    def __init__(
        self,
        channels: int,
        *,
        reduction: int = 16,
        init_step: float | None = None,
    ):
        super().__init__(channels, init_step=init_step)
        self.reduction = reduction
        self.mlp = SE(channels, reduction=reduction, init_step=init_step)
        self.conv = nn.Conv2d(2, 1, 7, padding=3, bias=False)
        self.bn = (nn.BatchNorm2d if init_step is None else ZeroBatchNorm2d)(
            1, momentum=0.01
        )
        self.init_weights()

    def forward(self, x: Tensor, f: Tensor) -> Tensor:
        """Choose the step, (N, C, H, W).

        Raises:
            ValueError: Training with one image of one pixel, of which BN has
                no variance.
        """
        mean = pool(f)
        pooled = torch.stack((mean, f.amax((2, 3)).to(mean.dtype)))
        channel = torch.sigmoid(self.mlp.excite(pooled).sum(0))
        channel = channel[..., None, None]
        gated = full_precision(f) * channel
        pooled = torch.stack((gated.mean(1), gated.amax(1)), 1)
        logit = self.conv(pooled.to(weight_dtype(self.conv)))
        spatial = torch.sigmoid(normalise_maps(self, self.bn, logit))
        return (channel * (spatial * self.scale)).to(f.dtype)
