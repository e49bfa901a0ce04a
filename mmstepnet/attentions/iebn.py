"""Instance enhancement batch normalisation.

Instance Enhancement Batch Normalization: An Adaptive Regulator of Batch
Noise, AAAI 2020, https://arxiv.org/abs/1908.04008
"""

import sys
from typing import Any

import torch
import torch.nn as nn
from torch import Tensor

from .pooling import pool
from .record import Recorded


class IEBN(Recorded, nn.BatchNorm2d):
    r"""BN whose weight each image scales by a gate of its own.

    .. math::
        y = \gamma \otimes \sigma(w \otimes \mathrm{GAP}(x) + b) \otimes
        \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta

    with w = 0 and b = -1 at the start. Used as
    ``norm_cfg=dict(type='mmstepnet.IEBN')``. It is a BN to the hosts: layers
    keep their names, a checkpoint with BN loads and lacks ``ie_weight`` and
    ``ie_bias`` only, and ``norm_eval`` freezes its statistics.

    Note:
        Tools that take any BN for a plain one do not know the gate. The
        conversion to SyncBN (``sync_bn`` in a config) is refused here; MMCV's
        ``fuse_conv_bn`` cannot be, and must not be used.

        Stiffness is measured with the gate inside f and with a step of 1, for
        this is no step behind the branch. Its TNS does not compare with that
        of the other attentions, which are measured without their gate; and
        :math:`\beta` lies outside the gate.

    Args:
        num_features (int): Channels C.
        eps (float): Added to the variance. Defaults to 1e-5.
        momentum (float, optional): Of the running statistics. Defaults
            to 0.1.
        init_step (float, optional): Warm start: the gate starts at exactly
            this value, scaled by ``init_step / sigmoid(-1)``, so that with
            1.0 a network with plain BN computes what it did before. None is
            the paper's form. Defaults to None.
    """

    initial_logits = (-1.0,)

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        *,
        init_step: float | None = None,
    ):
        super().__init__(num_features, eps, momentum)
        self.set_init_step(init_step)
        self.ie_weight = nn.Parameter(torch.zeros(num_features))
        self.ie_bias = nn.Parameter(
            torch.full((num_features,), self.initial_logits[0])
        )

    def reset_parameters(self) -> None:
        """Bring all to its start; BN's constructor calls it before."""
        super().reset_parameters()
        if 'ie_bias' in self._parameters:
            nn.init.zeros_(self.ie_weight)
            nn.init.constant_(self.ie_bias, self.initial_logits[0])

    def forward(self, x: Tensor) -> Tensor:
        """Normalise, (N, C, H, W) -> (N, C, H, W)."""
        gate = self.ie_weight * pool(x) + self.ie_bias
        gate = torch.sigmoid(gate)[..., None, None] * self.scale
        out = super().forward(x)
        # gate * (out - bias) + bias in one pass over the map.
        shift = self.bias[:, None, None] * (1 - gate)
        return torch.addcmul(shift.to(out.dtype), out, gate.to(out.dtype))

    def __getattr__(self, name: str) -> Any:
        """Refuse PyTorch's conversion to SyncBN, which would drop the gate.

        The conversion replaces every subclass of BN and calls no method of
        it. But it reads ``qconfig``, which is rarely set.
        """
        if (
            name == 'qconfig'
            and sys._getframe(1).f_code.co_name == 'convert_sync_batchnorm'
        ):
            raise RuntimeError(
                'IEBN cannot be converted to SyncBN: the conversion would '
                'drop its instance enhancement; leave sync_bn out of the '
                'config'
            )
        return super().__getattr__(name)
