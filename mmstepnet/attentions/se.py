"""Squeeze-and-excitation.

Squeeze-and-Excitation Networks, CVPR 2018,
https://arxiv.org/abs/1709.01507
"""

import torch
import torch.nn as nn
from torch import Tensor

from mmstepnet.checks import check_positive

from .base import ATTENTIONS, Attention, ChannelGate
from .pooling import weight_dtype
from .zero_start import ZeroLinear


class Excitation(Attention):
    r"""Perceptron of two layers whose logits a sigmoid turns into the step.

    Args:
        channels (int): Channels C.
        reduction (int): The hidden layer has ``max(C // reduction, 1)``
            units. Defaults to 16, as in the paper.
        init_step (float, optional): See :class:`Attention`. The last layer
            starts at zero and the gate is scaled by ``init_step / 0.5``.
            Defaults to None.

    Raises:
        ValueError: ``reduction`` is not a positive integer.
    """

    recorded = ('reduction',)

    def __init__(
        self,
        channels: int,
        *,
        reduction: int = 16,
        init_step: float | None = None,
    ):
        super().__init__(channels, init_step=init_step)
        check_positive(type(self).__name__, reduction=reduction)
        self.reduction = reduction
        hidden = max(channels // reduction, 1)
        self.fc1 = nn.Linear(channels, hidden)
        self.fc2 = (nn.Linear if init_step is None else ZeroLinear)(
            hidden, channels
        )
        self.init_weights()

    def excite(self, pooled: Tensor) -> Tensor:
        """Map pooled features (N, C) to logits (N, C)."""
        pooled = pooled.to(weight_dtype(self.fc1))
        return self.fc2(torch.relu(self.fc1(pooled)))


@ATTENTIONS.register
class SE(Excitation, ChannelGate):
    r"""Gate from the pooled residual through a two-layer perceptron.

    .. math::
        \Delta t = \sigma(W_2\, \mathrm{ReLU}(W_1\, \mathrm{GAP}(f) + b_1)
        + b_2)

    Arguments are those of :class:`Excitation`.
    """

    pooled = ('f_mean',)

    def forward(self, f_mean: Tensor) -> Tensor:
        """Choose the step, (N, C), from the mean of f."""
        return torch.sigmoid(self.excite(f_mean)) * self.scale
