"""Pre-activation blocks, made of a host's post-activation ones."""

import torch.nn as nn
from mmcv.cnn import build_norm_layer
from torch import Tensor

from mmstepnet.generated import generated_class
from mmstepnet.steps.fused_blocks import FusedBlock, TailStep


class PreActBlock(FusedBlock):
    """A host's basic block or bottleneck with norms before convolutions.

    Identity Mappings in Deep Residual Networks, ECCV 2016,
    https://arxiv.org/abs/1603.05027. Where the shape changes, the projection
    takes the activated input and has no norm of its own, as there.
    """

    @classmethod
    def _named_over(cls, host: type) -> tuple[str, dict]:
        """Keep the name."""
        return cls.__name__, {}

    @property
    def convs(self) -> list[nn.Module]:
        return [
            getattr(self, f'conv{k}')
            for k in (1, 2, 3)
            if hasattr(self, f'conv{k}')
        ]

    def branch(self, x: Tensor) -> Tensor:
        """Compute f from the activated input."""
        first, *others = self.convs
        x = first(x)
        for k, conv in enumerate(others, 2):
            x = conv(self.relu(getattr(self, f'norm{k}')(x)))
        return x

    def _forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.norm1(x))
        identity = x if self.downsample is None else self.downsample(out)
        return self._end(identity, self.branch(out))

    def last_layer(self) -> nn.Module:
        """The layer that gives f."""
        return self.convs[-1]

    def take_step(self) -> None:
        """Keep the step, with Δt = 1: the host's block is another one."""
        self.step.attention = None


def make_preact(block: nn.Module, norm_cfg: dict) -> None:
    """Turn a block of a host into a :class:`PreActBlock`, in place.

    Args:
        block (nn.Module): A block of the host's ResNet.
        norm_cfg (dict): Config of its norms.
    """
    block.__class__ = generated_class(PreActBlock, type(block))
    # Norm k stands before convolution k and has its input's width.
    for k, conv in enumerate(block.convs, 1):
        _, norm = build_norm_layer(norm_cfg, conv.in_channels)
        setattr(block, getattr(block, f'norm{k}_name'), norm)
    if block.downsample is not None:
        del block.downsample[-1]
    block.step = TailStep()
