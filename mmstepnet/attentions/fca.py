"""Frequency channel attention.

FcaNet: Frequency Channel Attention Networks, ICCV 2021,
https://arxiv.org/abs/2012.11879
"""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from mmstepnet.precision import accumulation_dtype
from mmstepnet.torch_version import is_exporting

from .base import ATTENTIONS, MapAttention
from .pooling import full_precision, leaf
from .se import Excitation

# The 16 best frequencies (vertical, horizontal) of the paper's search on a
# 7x7 grid ("top16" of FCA-TS).
TOP_16 = (
    (0, 0),
    (0, 1),
    (6, 0),
    (0, 5),
    (0, 2),
    (1, 0),
    (1, 2),
    (4, 0),
    (5, 0),
    (1, 6),
    (3, 0),
    (0, 4),
    (0, 6),
    (0, 3),
    (3, 5),
    (2, 2),
)
GRID = 7


@ATTENTIONS.register
class FCA(Excitation, MapAttention):
    r"""Squeeze-and-excitation whose squeeze is a cosine transform.

    Channels are cut into 16 consecutive groups; group k is pooled with the
    k-th of 16 frequencies instead of the average:

    .. math::
        z_c = \sum_{h, w} f_{chw}\, b_{u_k}(h)\, b_{v_k}(w), \qquad
        b_u(h) = \sqrt{\tfrac{1 + [u > 0]}{S}} \cos\frac{\pi u (h + 1/2)}{S}

    The frequencies of the paper's 7x7 grid are multiplied by ``S // 7``. Maps
    of another size than S x S are first pooled to it by averaging. Channels
    that do not divide by 16: channel c is in group ``16 c // C``.

    Args:
        channels (int): Channels C.
        map_size (int): Side S of the stage's map, at least 7. Backbones of
            this package give it: 56, 28, 14 and 7 on ImageNet, 32, 16 and 8
            on CIFAR.
        reduction (int): See :class:`Excitation`. Defaults to 16.
        init_step (float, optional): See :class:`Excitation`. Defaults to
            None.

    Raises:
        ValueError: ``map_size`` is missing or below 7, where the frequencies
            cannot be told apart.
    """

    needs_map_size = True
    recorded = ('map_size', 'reduction')

    def __init__(
        self,
        channels: int,
        *,
        map_size: int,
        reduction: int = 16,
        init_step: float | None = None,
    ):
        super().__init__(channels, reduction=reduction, init_step=init_step)
        if not isinstance(map_size, int) or map_size < GRID:
            raise ValueError(
                f"FCA: map_size, the side of the stage's feature map, must be "
                f'an integer of at least {GRID}, got {map_size!r}; give one '
                "as in dict(type='FCA', map_size=14)"
            )
        self.map_size = map_size
        # Not persistent: it follows from the arguments.
        self.basis: Tensor
        self.register_buffer(
            'basis', dct_basis(channels, map_size, torch.float32), False
        )

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Bring all to its start; transformers leaves buffers unset, too."""
        super().reset_parameters()
        self.basis.copy_(
            dct_basis(self.channels, self.map_size, self.basis.dtype)
        )

    def _apply(self, *args, **kwargs) -> nn.Module:
        """Compute the basis anew in a new dtype, which rounds it once."""
        super()._apply(*args, **kwargs)
        self.basis = dct_basis(
            self.channels, self.map_size, self.basis.dtype
        ).to(self.basis.device)
        return self

    def forward(self, x: Tensor, f: Tensor) -> Tensor:
        """Choose the step, (N, C, 1, 1), from the transform of f."""
        maps = resize(full_precision(f), self.map_size)
        logits = self.excite((maps * self.basis).sum((2, 3)))
        gate = torch.sigmoid(logits) * self.scale
        return gate.to(f.dtype)[..., None, None]


@leaf
def resize(f: Tensor, size: int) -> Tensor:
    """Average a map into (N, C, size, size), unless it has that size.

    Graphs for other programs get the same average as two matrix products:
    theirs must serve every size, and ONNX has no other form.
    """
    if is_exporting():
        height, width = (_averages(f, n, size) for n in f.shape[2:])
        return height @ f @ width.mT
    if f.shape[2:] == (size, size):
        return f
    return F.adaptive_avg_pool2d(f, size)


def _averages(f: Tensor, length: int, size: int) -> Tensor:
    """Adaptive average pooling of a line as a matrix, (size, length)."""
    at = torch.arange(length, device=f.device)
    row = torch.arange(size, device=f.device)[:, None]
    first = row * length // size
    behind = ((row + 1) * length + size - 1) // size
    inside = (at >= first) & (at < behind)
    return inside.to(f.dtype) / (behind - first)


def dct_basis(channels: int, size: int, dtype: torch.dtype) -> Tensor:
    """Cosine basis function of each channel, (channels, size, size)."""
    group = torch.arange(channels, device='cpu') * len(TOP_16) // channels
    frequency = torch.tensor(
        TOP_16, device='cpu', dtype=accumulation_dtype(dtype)
    )[group] * (size // GRID)
    position = torch.arange(size, dtype=torch.float64, device='cpu') + 0.5
    # (channels, 2, size): the vertical and the horizontal factor.
    wave = torch.cos(torch.pi / size * frequency[..., None] * position)
    wave *= ((1 + (frequency > 0).to(frequency)) / size).sqrt()[..., None]
    return (wave[:, 0, :, None] * wave[:, 1, None, :]).to(dtype)
