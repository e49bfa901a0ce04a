"""Switchable self-attention module.

Switchable Self-attention Module, 2022, https://arxiv.org/abs/2209.05680
"""

from typing import Any

import torch
import torch.nn as nn
from torch import Tensor

from .base import ATTENTIONS, ChannelGate
from .eca import ECA
from .se import SE


@ATTENTIONS.register
class SEM(ChannelGate):
    r"""Product of three gates, each turned up or down by a learned switch.

    .. math::
        g &= \mathrm{GAP}(f), \qquad w = \sigma(W g + b) \in (0, 1)^3 \\
        \Delta t &= \sigma(w_0\, \mathrm{SE}(g))\, \sigma(w_1\,
        \mathrm{ECA}(g))\, \sigma(w_2 (W_{IE} \otimes g + b_{IE}))

    where SE and ECA are those modules' logits, and :math:`W_{IE} = 0`,
    :math:`b_{IE} = -1` at the start.

    Args:
        channels (int): Channels C.
        reduction (int): See :class:`SE`. Defaults to 16.
        init_step (float, optional): See :class:`Attention`. The last layers
            of SE and ECA and :math:`b_{IE}` start at zero, so that no switch
            matters, and the product is scaled by ``init_step / 0.125``.
            Defaults to None.
    """

    pooled = ('f_mean',)
    initial_logits = (0.0, 0.0, 0.0)
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
        self.switch = nn.Linear(channels, 3)
        self.se = SE(channels, reduction=reduction, init_step=init_step)
        self.eca = ECA(channels, init_step=init_step)
        self.ie_weight = nn.Parameter(torch.empty(channels))
        self.ie_bias = nn.Parameter(torch.empty(channels))
        self.init_weights()

    def init_weights(self) -> None:
        super().init_weights()
        nn.init.zeros_(self.ie_weight)
        nn.init.constant_(self.ie_bias, -1.0 if self.init_step is None else 0)

    def forward(self, f_mean: Tensor) -> Tensor:
        """Choose the step, (N, C), from the mean of f."""
        pooled = f_mean.to(self.ie_weight.dtype)
        switch = torch.sigmoid(self.switch(pooled))
        logits = (
            self.se.excite(pooled),
            self.eca.excite(pooled),
            self.ie_weight * pooled + self.ie_bias,
        )
        gate: Any = self.scale
        for k, logit in enumerate(logits):
            gate = gate * torch.sigmoid(switch[:, k : k + 1] * logit)
        return gate
