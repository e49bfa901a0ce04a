"""Spatial group-wise enhancement.

Spatial Group-wise Enhance: Improving Semantic Feature Learning in
Convolutional Networks, 2019, https://arxiv.org/abs/1905.09646
"""

import torch
import torch.nn as nn
from torch import Tensor

from mmstepnet.checks import check_positive

from .base import ATTENTIONS, MapAttention
from .pooling import EPS, full_precision, pool


@ATTENTIONS.register
class SGE(MapAttention):
    r"""Gate from each position's similarity to its group's mean vector.

    Channels are cut into G consecutive groups. With :math:`f_{gi}` the
    vector of group g at position i:

    .. math::
        c_{gi} = f_{gi} \cdot \mathrm{GAP}(f)_g, \qquad
        \hat c_{gi} = \frac{c_{gi} - \mu_g}{\sigma_g + \epsilon}, \qquad
        \Delta t_{gi} = \sigma(\gamma_g \hat c_{gi} + \beta_g)

    with :math:`\mu_g`, :math:`\sigma_g` over the image's positions (the
    population's deviation, as in the paper), and :math:`\gamma = 0`,
    :math:`\beta = 1` at the start.

    A group of one channel, 64 groups of 64, has a gate that jumps where
    GAP(f) changes its sign, with a gradient of the order of 1/ε there. Narrow
    networks need fewer groups: ResNet-20 broke down with 64 and did not with
    4, one seed each (``projects/reproduction/configs/small``).

    Args:
        channels (int): Channels C.
        groups (int): Wanted number of groups; G is the largest divisor of C
            up to it, hence ``groups`` itself where that divides C. Defaults
            to 64.
        init_step (float, optional): See :class:`Attention`. The gate starts
            constant because :math:`\gamma = 0`; it is scaled by
            ``init_step / sigmoid(1)``. Defaults to None.

    Raises:
        ValueError: ``groups`` is not a positive integer.
    """

    initial_logits = (1.0,)
    recorded = ('groups',)

    def __init__(
        self,
        channels: int,
        *,
        groups: int = 64,
        init_step: float | None = None,
    ):
        super().__init__(channels, init_step=init_step)
        check_positive('SGE', groups=groups)
        self.groups = max(
            g for g in range(1, min(groups, channels) + 1) if channels % g == 0
        )
        self.weight = nn.Parameter(torch.empty(self.groups))
        self.bias = nn.Parameter(torch.empty(self.groups))
        self.init_weights()

    def init_weights(self) -> None:
        nn.init.zeros_(self.weight)
        nn.init.ones_(self.bias)

    def forward(self, x: Tensor, f: Tensor) -> Tensor:
        """Choose the step, (N, C, H, W)."""
        split = (self.groups, self.channels // self.groups)
        # Reshaped, not unflattened: ONNX has that from opset 13 on.
        vectors = full_precision(f).reshape(
            f.shape[0], *split, f.shape[2], f.shape[3]
        )
        mean_vector = pool(f).reshape(f.shape[0], *split, 1, 1)
        similarity = (vectors * mean_vector).sum(2)
        centred = similarity - similarity.mean((2, 3), keepdim=True)
        # A vector norm has the gradient 0 where the map is constant; a
        # standard deviation has none.
        norm = torch.linalg.vector_norm(centred, dim=(2, 3), keepdim=True)
        sigma = norm / (f.shape[2] * f.shape[3]) ** 0.5
        normed = (centred / (sigma + EPS)).to(self.weight.dtype)
        gate = (
            torch.sigmoid(
                self.weight[:, None, None] * normed + self.bias[:, None, None]
            )
            * self.scale
        )
        return gate.to(f.dtype).repeat_interleave(split[1], dim=1)
