"""StepNet's adaptor.

Understanding Self-attention Mechanism via Dynamical System Perspective,
ICCV 2023, https://arxiv.org/abs/2308.09939
"""


import torch
import torch.nn as nn
from torch import Tensor

from mmstepnet.registry import ATTENTIONS

from .base import Attention, pool, warm_start_scale

INITIAL_LOGIT = -1.0  # b_IE at the start, Appendix F


@ATTENTIONS.register_module()
class StepNet(Attention):
    r"""Step chosen from two neighbouring states (§2.5, Fig. 4, Appendix F).

    .. math::
        p &= \mathrm{GAP}(x_t), \qquad
        q = \mathrm{GAP}(x_t + f(x_t)) = p + \mathrm{GAP}(f(x_t)) \\
        z_c &= w_{c0}\, p_c + w_{c1}\, q_c \\
        \Delta t &= \sigma(W_{IE} \otimes \mathrm{BN}(z) + b_{IE})

    with :math:`W_{IE} = 0` and :math:`b_{IE} = -1` at the start, hence
    :math:`\Delta t = \sigma(-1) = 0.2689` everywhere. 6 parameters a channel.

    Readings, not facts; no code of the authors is public and the figures of
    our copy are lost. That "group convolution with kernel size 1" joins the
    pair :math:`(p_c, q_c)` of each channel without a bias, and that a block
    whose identity is projected carries no adaptor (``first_block``), is what
    reproduces the paper's parameter counts (Table 1).

    Args:
        channels (int): Channels C.
        init_step (float, optional): See :class:`Attention`. The gate starts
            constant because :math:`W_{IE} = 0`; it is scaled by
            ``init_step / sigmoid(-1)``. Defaults to None.
    """

    first_block = False

    def __init__(self, channels: int, init_step: float | None = None):
        super().__init__(channels, init_step)
        self.pair_weight = nn.Parameter(torch.empty(channels, 2))
        self.bn = nn.BatchNorm1d(channels)
        self.ie_weight = nn.Parameter(torch.empty(channels))
        self.ie_bias = nn.Parameter(torch.empty(channels))
        self.scale = warm_start_scale(init_step, INITIAL_LOGIT)
        self.init_weights()

    def init_weights(self) -> None:
        """Bring every parameter to its starting value."""
        # PyTorch's default for a convolution of fan-in 2.
        nn.init.uniform_(self.pair_weight, -0.5**0.5, 0.5**0.5)
        self.bn.reset_parameters()
        nn.init.zeros_(self.ie_weight)
        nn.init.constant_(self.ie_bias, INITIAL_LOGIT)

    def forward(self, x: Tensor, f: Tensor) -> Tensor:
        """Choose the step, (N, C, 1, 1). See :meth:`Attention.forward`.

        Raises:
            ValueError: Training with one image, of which BN has no variance.
        """
        dtype = self.pair_weight.dtype
        p = pool(x).to(dtype)
        q = p + pool(f).to(dtype)
        check_batch(self.bn, p)
        z = self.pair_weight[:, 0] * p + self.pair_weight[:, 1] * q
        gate = torch.sigmoid(self.ie_weight * self.bn(z) + self.ie_bias)
        return (gate * self.scale).to(f.dtype)[..., None, None]


def check_batch(bn: nn.Module, pooled: Tensor) -> None:
    """Refuse to normalise one pooled vector by its own statistics.

    Args:
        bn (nn.Module): Norm over pooled features.
        pooled (Tensor): Its input, (N, C).

    Raises:
        ValueError: ``bn`` is an ordinary BN in training mode and N is 1.
    """
    if (bn.training and pooled.shape[0] == 1
            and not isinstance(bn, nn.SyncBatchNorm)):
        raise ValueError(
            'the attention normalises pooled features over the batch and '
            'needs at least 2 images a process in training, got 1; use '
            'batch_size >= 2 (drop_last=True), norm_eval=True with '
            "AttentionBNCalibrationHook, or sync_bn='torch'")
