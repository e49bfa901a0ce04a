"""Instance enhancement batch normalisation.

Instance Enhancement Batch Normalization: An Adaptive Regulator of Batch
Noise, AAAI 2020, https://arxiv.org/abs/1908.04008
"""

import sys
from typing import Any

import torch
import torch.nn as nn
from torch import Tensor

from .base import check_init_step, warm_start_scale
from .pooling import pool
from .record import Recorded

INITIAL_LOGIT = -1.0


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

    def __init__(self,
                 num_features: int,
                 eps: float = 1e-5,
                 momentum: float | None = 0.1,
                 *,
                 init_step: float | None = None):
        super().__init__(num_features, eps, momentum)
        self.set_init_step(init_step)
        self.ie_weight = nn.Parameter(torch.zeros(num_features))
        self.ie_bias = nn.Parameter(torch.full((num_features, ),
                                               INITIAL_LOGIT))

    def reset_parameters(self) -> None:
        """Bring all to its start; BN's constructor calls it before."""
        super().reset_parameters()
        if 'ie_bias' in self._parameters:
            nn.init.zeros_(self.ie_weight)
            nn.init.constant_(self.ie_bias, INITIAL_LOGIT)

    def set_init_step(self, init_step: float | None) -> None:
        """Let the gate start elsewhere; parameters stay what they are."""
        check_init_step('IEBN', init_step)
        self.init_step = init_step
        self.scale = warm_start_scale(init_step, INITIAL_LOGIT)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise, (N, C, H, W) -> (N, C, H, W)."""
        gate = self.ie_weight * pool(x) + self.ie_bias
        gate = torch.sigmoid(gate)[..., None, None] * self.scale
        out = super().forward(x)
        # gate * (out - bias) + bias in one pass over the map.
        shift = self.bias[:, None, None] * (1 - gate)
        return torch.addcmul(shift.to(out.dtype), out, gate.to(out.dtype))

    @property
    def qconfig(self) -> Any:
        """Setting of PyTorch's quantisation, absent until it is set.

        The conversion to SyncBN, which would drop the gate, is refused here:
        PyTorch's and MMEngine's converters replace every subclass of BN, and
        this is a part that they ask it for.
        """
        # The converters look for subclasses of BN alone and call nothing of
        # theirs: who asks for this part is all that a subclass can know.
        caller = sys._getframe(1).f_code.co_name
        if caller == 'convert_sync_batchnorm':
            raise RuntimeError(
                'IEBN cannot be converted to SyncBN: the conversion would '
                'drop its instance enhancement; leave sync_bn out of the '
                'config')
        if 'qconfig' not in self.__dict__:
            raise AttributeError('qconfig')
        return self.__dict__['qconfig']

    @qconfig.setter
    def qconfig(self, value: Any) -> None:
        self.__dict__['qconfig'] = value

    def extra_repr(self) -> str:
        """BN's arguments and the warm start, for ``print(model)``."""
        return f'{super().extra_repr()}, init_step={self.init_step}'
