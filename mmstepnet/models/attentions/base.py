"""What all attentions share."""


import numpy as np
import torch
from mmengine.model import BaseModule
from torch import Tensor

from mmstepnet.registry import ATTENTIONS


class Attention(BaseModule):
    r"""Rule that chooses the step :math:`\Delta t` of a residual block.

    Subclasses implement ``forward(x, f) -> step`` and ``init_weights()``,
    which brings every parameter to its starting value, whatever an
    ``init_cfg`` of the backbone did to it.

    Args:
        channels (int): Channels of x and f.
        init_step (float, optional): Warm start: the step starts at exactly
            this value, so that with 1.0 a pretrained plain network computes
            what it did before. None is the paper's form. Defaults to None.
    """

    first_block = True
    """Whether blocks whose identity is projected carry it by default."""

    def __init__(self, channels: int, init_step: float | None = None):
        super().__init__()
        if not isinstance(channels, int) or channels < 1:
            raise ValueError(f'{type(self).__name__}: channels must be a '
                             f'positive integer, got {channels!r}')
        if init_step is not None and not (np.isfinite(init_step)
                                          and init_step > 0):
            raise ValueError(
                f'{type(self).__name__}: init_step must be a positive number '
                f"(1.0 keeps a pretrained network's output) or None for the "
                f"paper's form, got {init_step!r}")
        self.channels = channels
        self.init_step = init_step

    def forward(self, x: Tensor, f: Tensor) -> Tensor:
        """Choose the step.

        Args:
            x (Tensor): State x_t, (N, C, H, W).
            f (Tensor): Residual f(x_t), (N, C, H, W).

        Returns:
            Tensor: Step, broadcastable to ``f``, in its dtype.
        """
        raise NotImplementedError

    def extra_repr(self) -> str:
        """Channels and warm start, for ``print(model)``."""
        return f'channels={self.channels}, init_step={self.init_step}'


def build_attention(cfg: dict, channels: int) -> Attention:
    """Build an attention from its config, whatever the default scope is.

    Args:
        cfg (dict): ``type`` (a name registered in ``ATTENTIONS``) and the
            arguments beside ``channels``.
        channels (int): Channels of the residual branch's output.

    Raises:
        KeyError: The name is not registered; the message lists what is.
    """
    if not isinstance(cfg, dict) or 'type' not in cfg:
        raise TypeError("attention must be a dict with 'type', such as "
                        f"dict(type='StepNet'), or None; got {cfg!r}")
    kwargs = dict(cfg)
    name = kwargs.pop('type')
    ATTENTIONS.import_from_location()
    bare_name = str(name).removeprefix('mmstepnet.')
    if bare_name not in ATTENTIONS.module_dict:
        raise KeyError(f'attention {name!r} is unknown; registered are '
                       f'{sorted(ATTENTIONS.module_dict)}')
    return ATTENTIONS.module_dict[bare_name](channels, **kwargs)


def pool(x: Tensor) -> Tensor:
    """Global average pooling, (N, C, H, W) -> (N, C).

    In float32 or better: half precision cannot hold a large map's sum.
    """
    half = x.dtype in (torch.float16, torch.bfloat16)
    return x.mean((2, 3), dtype=torch.float32 if half else None)


def warm_start_scale(init_step: float | None, logit: float) -> float:
    """Factor that brings a sigmoid gate's starting value to ``init_step``.

    Args:
        init_step (float, optional): Wanted starting value; None gives 1.
        logit (float): What the gate's sigmoid sees at the start.

    Returns:
        float: c with ``sigmoid(logit) * c == init_step``, exact in float32
        wherever float32 holds such a c.
    """
    if init_step is None:
        return 1.0
    gate = torch.tensor(logit, dtype=torch.float32).sigmoid().numpy()
    scale = np.float32(init_step) / gate
    for candidate in (scale, np.nextafter(scale, np.float32(0)),
                      np.nextafter(scale, np.float32(np.inf))):
        if gate * candidate == np.float32(init_step):
            return float(candidate)
    return float(scale)
