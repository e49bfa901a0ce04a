"""The plain residual network, whose step is 1.

Deep Residual Learning for Image Recognition, CVPR 2016,
https://arxiv.org/abs/1512.03385
"""

import torch.nn as nn
from torch import Tensor

from .base import ATTENTIONS, MapAttention


@ATTENTIONS.register
class Plain(MapAttention):
    r"""Step of a plain residual network, :math:`\Delta t = 1`.

    ``attention=None`` is its short form; a config that inherits another
    attention says ``attention=dict(type='Plain')``.

    Args:
        channels (int): Channels C.
        init_step (float, optional): 1, where it is inherited from another
            attention's config. Defaults to None.

    Raises:
        ValueError: ``init_step`` is neither None nor 1.
    """

    needs_positions = False

    # Without parameters it has no weights to record anything beside.
    get_extra_state = nn.Module.get_extra_state
    set_extra_state = nn.Module.set_extra_state

    def __init__(self, channels: int, *, init_step: float | None = None):
        super().__init__(channels, init_step=init_step)
        if init_step not in (None, 1):
            raise ValueError(
                'Plain: the step of a plain network is 1, so '
                f'init_step must be 1 or None, got {init_step!r}'
            )
        self.init_step = None  # it has no start to be kept at

    def forward(self, x: Tensor, f: Tensor) -> Tensor:
        """Give the step 1, (1, 1, 1, 1)."""
        return f.new_ones((1, 1, 1, 1))
