"""Style-based recalibration.

SRM: A Style-based Recalibration Module for Convolutional Neural Networks,
ICCV 2019, https://arxiv.org/abs/1903.10829
"""

import torch
import torch.nn as nn
from torch import Tensor

from .base import ATTENTIONS, ChannelGate, normalise
from .zero_start import ZeroBatchNorm1d


@ATTENTIONS.register
class SRM(ChannelGate):
    r"""Gate from each channel's mean and standard deviation.

    .. math::
        z_c = w_{c0}\, \mathrm{mean}(f_c) + w_{c1}\, \mathrm{std}(f_c),
        \qquad \Delta t = \sigma(\mathrm{BN}(z))

    with w = 0 at the start. The deviation is the population's, as in the
    paper's Eq. 2, with 1e-5 added to the variance.

    Args:
        channels (int): Channels C.
        init_step (float, optional): See :class:`Attention`. BN's weight
            starts at zero and the gate is scaled by ``init_step / 0.5``; w
            starts at random, because a BN over the zeros of the paper's
            start has no variance, and would amplify the first update of w
            by ``1 / sqrt(eps)``. Defaults to None.
    """

    pooled = ('f_mean', 'f_std')

    def __init__(self, channels: int, *, init_step: float | None = None):
        super().__init__(channels, init_step=init_step)
        self.style_weight = nn.Parameter(torch.empty(channels, 2))
        self.bn = (nn.BatchNorm1d if init_step is None else ZeroBatchNorm1d)(
            channels
        )
        self.init_weights()

    def init_weights(self) -> None:
        super().init_weights()
        if self.init_step is None:
            nn.init.zeros_(self.style_weight)
        else:
            # PyTorch's default for a convolution of fan-in 2.
            nn.init.uniform_(self.style_weight, -(0.5**0.5), 0.5**0.5)

    def forward(self, f_mean: Tensor, f_std: Tensor) -> Tensor:
        """Choose the step, (N, C), from mean and deviation of f.

        Raises:
            ValueError: Training with one image, of which BN has no variance.
        """
        weight = self.style_weight
        z = weight[:, 0] * f_mean + weight[:, 1] * f_std
        z = normalise(self, self.bn, z.to(weight.dtype))
        return torch.sigmoid(z) * self.scale
