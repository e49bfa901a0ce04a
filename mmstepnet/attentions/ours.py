"""Adaptors of our own, to set beside StepNet's.

Table 4 of the StepNet paper compares four alternative adaptors, a to d,
which stand in Fig. 5 only; no copy of them is known to us. Those here are
ours, change one thing each, and stand for none of the paper's: its accuracies
of "Adaptor a" to "d" are no reference for them.
"""

from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from mmstepnet.checks import check_positive

from .base import ATTENTIONS, ChannelGate, MapAttention, normalise
from .pooling import full_precision, pool, pool_std, weight_dtype
from .stepnet import Adaptor, StepNet


@ATTENTIONS.register
class OursSharedMLP(Adaptor, ChannelGate):
    """Pooled states meet in one perceptron that all channels share.

    z = W_2 ReLU(W_1 [p; q] + b_1) + b_2, in place of StepNet's two weights a
    channel.

    Args:
        channels (int): Channels C.
        reduction (int): The hidden layer has ``max(C // reduction, 1)``
            units. Defaults to 16.
        init_step (float, optional): See :class:`Adaptor`. Defaults to None.
    """

    pooled = ('x_mean', 'f_mean')
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
        self.fc1 = nn.Linear(2 * channels, hidden)
        self.fc2 = nn.Linear(hidden, channels)
        self.init_weights()

    def forward(self, x_mean: Tensor, f_mean: Tensor) -> Tensor:
        """Choose the step, (N, C), from the means of x and f."""
        pair = torch.cat((x_mean, x_mean + f_mean), 1)
        pair = pair.to(weight_dtype(self.fc1))
        return self.gate(self.fc2(torch.relu(self.fc1(pair))))


@ATTENTIONS.register
class OursDepthwiseConv(Adaptor, MapAttention):
    """States meet in a 3x3 convolution before they are pooled.

    z = GAP(ReLU(conv([x_t, x_t + f]))): a group convolution over the pair of
    maps of each channel, without bias. The ReLU keeps it from being a pooling
    with other weights at the border.

    Args:
        channels (int): Channels C.
        init_step (float, optional): See :class:`Adaptor`. Defaults to None.
    """

    def __init__(self, channels: int, *, init_step: float | None = None):
        super().__init__(channels, init_step=init_step)
        self.conv = nn.Conv2d(
            2 * channels, channels, 3, padding=1, groups=channels, bias=False
        )
        self.init_weights()

    def forward(self, x: Tensor, f: Tensor) -> Tensor:
        """Choose the step, (N, C, 1, 1), from each channel's pair of maps."""
        pair = torch.stack((x, x + f), 2).flatten(1, 2)
        maps = F.relu(self.conv(pair.to(weight_dtype(self.conv))))
        step = self.gate(pool(maps).to(self.ie_weight.dtype))
        return step.to(f.dtype)[..., None, None]


@ATTENTIONS.register
class OursNoNorm(StepNet):
    """StepNet's adaptor without its BN: W_IE meets z as it is.

    Arguments are those of :class:`StepNet`.
    """

    def __init__(
        self,
        channels: int,
        *,
        init_step: float | None = None,
        inputs: str = 'both',
        iebn: str = 'appendix',
    ):
        super().__init__(
            channels, init_step=init_step, inputs=inputs, iebn=iebn
        )
        self.bn = nn.Identity()


@ATTENTIONS.register
class OursNormFirst(Adaptor, ChannelGate):
    """StepNet's adaptor with its BN before the convolution.

    z = w_0 BN(p) + w_1 BN(q), each state normalised on its own: 8 parameters
    a channel, where the paper's counts ask for 6.

    Args:
        channels (int): Channels C.
        init_step (float, optional): See :class:`Adaptor`. Defaults to None.
    """

    pooled = ('x_mean', 'f_mean')

    def __init__(self, channels: int, *, init_step: float | None = None):
        super().__init__(channels, init_step=init_step)
        self.bn = nn.Identity()
        self.pair_bn = nn.BatchNorm1d(2 * channels)
        self.pair_weight = nn.Parameter(torch.empty(channels, 2))
        self.init_weights()

    def init_mix(self) -> None:
        """Bring the parameters of the mix to their starting values."""
        # PyTorch's default for a convolution of fan-in 2.
        nn.init.uniform_(self.pair_weight, -(0.5**0.5), 0.5**0.5)

    def forward(self, x_mean: Tensor, f_mean: Tensor) -> Tensor:
        """Choose the step, (N, C), from the means of x and f."""
        pair = torch.cat((x_mean, x_mean + f_mean), 1)
        pair = pair.to(self.pair_weight.dtype)
        p, q = normalise(self, self.pair_bn, pair).chunk(2, 1)
        weight = self.pair_weight
        return self.gate(weight[:, 0] * p + weight[:, 1] * q)


@ATTENTIONS.register
class OursMeanStd(Adaptor, MapAttention):
    """States are pooled by mean and standard deviation.

    z joins mean and deviation of x_t and of x_t + f, as StepNet joins the
    two means. The deviation is that of :func:`pool_std`.

    Args:
        channels (int): Channels C.
        init_step (float, optional): See :class:`Adaptor`. Defaults to None.
    """

    needs_positions = False

    def __init__(self, channels: int, *, init_step: float | None = None):
        super().__init__(channels, init_step=init_step)
        self.style_weight = nn.Parameter(torch.empty(channels, 4))
        self.init_weights()

    def init_mix(self) -> None:
        """Bring the parameters of the mix to their starting values."""
        # PyTorch's default for a convolution of fan-in 4.
        nn.init.uniform_(self.style_weight, -0.5, 0.5)

    def forward(self, x: Tensor, f: Tensor) -> Tensor:
        """Choose the step, (N, C, 1, 1), from both states' statistics."""
        x_next = full_precision(x) + f
        statistics = (pool(x), pool_std(x), pool(x_next), pool_std(x_next))
        weight = self.style_weight
        z: Any = sum(
            weight[:, k] * statistic.to(weight.dtype)
            for k, statistic in enumerate(statistics)
        )
        step = self.gate(z)
        return step.to(f.dtype)[..., None, None]
