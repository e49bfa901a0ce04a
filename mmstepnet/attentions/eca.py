"""Efficient channel attention.

ECA-Net: Efficient Channel Attention for Deep Convolutional Neural Networks,
CVPR 2020, https://arxiv.org/abs/1910.03151
"""

import math

import torch
import torch.nn as nn
from torch import Tensor

from .base import ATTENTIONS, ChannelGate
from .pooling import weight_dtype
from .zero_start import ZeroConv1d


@ATTENTIONS.register
class ECA(ChannelGate):
    r"""Gate from a convolution across neighbouring pooled channels.

    .. math::
        \Delta t = \sigma(\mathrm{Conv1d}_k(\mathrm{GAP}(f)))

    with zero padding, no bias, and k the odd number that the paper's Eq. 12
    gives: :math:`\lfloor |\log_2 C + 1| / 2 \rfloor`, plus one where even.

    Args:
        channels (int): Channels C.
        init_step (float, optional): See :class:`Attention`. The convolution
            starts at zero and the gate is scaled by ``init_step / 0.5``.
            Defaults to None.
    """

    pooled = ('f_mean',)

    def __init__(self, channels: int, *, init_step: float | None = None):
        super().__init__(channels, init_step=init_step)
        size = int((math.log2(channels) + 1) / 2)
        size += 1 - size % 2
        self.conv = (nn.Conv1d if init_step is None else ZeroConv1d)(
            1, 1, size, padding=size // 2, bias=False
        )
        self.init_weights()

    def excite(self, pooled: Tensor) -> Tensor:
        """Map pooled features (N, C) to logits (N, C)."""
        pooled = pooled.to(weight_dtype(self.conv))
        return self.conv(pooled[:, None])[:, 0]

    def forward(self, f_mean: Tensor) -> Tensor:
        """Choose the step, (N, C), from the mean of f."""
        return torch.sigmoid(self.excite(f_mean)) * self.scale
