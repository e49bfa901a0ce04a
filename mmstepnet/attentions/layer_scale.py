"""A constant step: one number a channel or a block, which sees no image.

LayerScale: Going deeper with Image Transformers, ICCV 2021,
https://arxiv.org/abs/2103.17239. One number a block is SkipInit, Batch
Normalization Biases Residual Blocks Towards the Identity Function in Deep
Networks, NeurIPS 2020, https://arxiv.org/abs/2002.10444, and, with
``initial=0``, ReZero, ReZero is All You Need: Fast Convergence at Large
Depth, UAI 2021, https://arxiv.org/abs/2003.04887. One that is not learned is
the scaling of residuals of Inception-v4, AAAI 2017,
https://arxiv.org/abs/1602.07261. High-Performance Large-Scale Image
Recognition Without Normalization, ICML 2021,
https://arxiv.org/abs/2102.06171, trains SkipInit's number beside a fixed one
(NFNet).
"""

import math
from numbers import Real

import torch
import torch.nn as nn
from torch import Tensor

from .base import ATTENTIONS, ChannelGate


@ATTENTIONS.register
class LayerScale(ChannelGate):
    r"""Constant step, :math:`\Delta t_c = \gamma_c`.

    It is the control of every other attention: what a gate brings beyond it
    is what it brings by looking at the image. Behind a BN it is another
    :math:`\gamma` and :math:`\beta` of that norm, with a start, a rate and a
    decay of its own, and :func:`mmstepnet.fold` takes it into the norm.

    Args:
        channels (int): Channels C.
        init_step (float, optional): Where the step starts, in place of
            ``initial``. Defaults to None.
        initial (float): Where it starts without ``init_step``: any finite
            number. Defaults to 1e-5.
        shared (bool): Whether a block has one number for all its channels.
            Defaults to False.
        learned (bool): Whether it is trained. Defaults to True.

    Raises:
        ValueError: ``initial`` is not a finite number.
    """

    recorded = ('initial', 'shared', 'learned')

    def __init__(
        self,
        channels: int,
        *,
        init_step: float | None = None,
        initial: float = 1e-5,
        shared: bool = False,
        learned: bool = True,
    ):
        super().__init__(channels, init_step=init_step)
        if (
            isinstance(initial, bool)
            or not isinstance(initial, Real)
            or not math.isfinite(initial)
        ):
            raise ValueError(
                f'LayerScale: initial must be a finite number, got {initial!r}'
            )
        self.initial = float(initial)
        self.shared = bool(shared)
        self.learned = bool(learned)
        weight = torch.empty(1 if shared else channels)
        if learned:
            self.weight = nn.Parameter(weight)
        else:
            self.register_buffer('weight', weight)
        self.init_weights()

    def init_weights(self) -> None:
        start = self.initial if self.init_step is None else self.init_step
        nn.init.constant_(self.weight, start)

    def forward(self) -> Tensor:
        """Give the step, (1, C)."""
        return self.weight.expand(1, self.channels)
