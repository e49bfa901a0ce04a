"""Residual blocks that end in a :class:`ResidualStep`."""

import warnings

import torch.nn as nn
from mmcv.cnn import build_norm_layer
from mmengine.model import BaseModule
from mmpretrain.models.backbones.resnet import BasicBlock, Bottleneck, ResLayer
from mmpretrain.models.backbones.resnext import Bottleneck as ResNeXtBottleneck
from torch import Tensor

from mmstepnet.attentions import IEBN
from mmstepnet.steps import ResidualStep, checkpoint


class _StepBlock(nn.Module):
    """Turns a block of mmpretrain into one that ends in a ResidualStep.

    Subclasses give ``branch(x)`` up to the last convolution, and the norm
    behind it. Parameter names stay the host's, hence torchvision's.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.step = ResidualStep(
            activation=self.relu, drop_path=self.drop_path)

    def conv_norm_pairs(self) -> list[tuple[str, str]]:
        """Names of convolutions and of the norms behind them, to fold."""
        count = 3 if hasattr(self, 'conv3') else 2
        return [(f'conv{k}', getattr(self, f'norm{k}_name'))
                for k in range(1, count + 1)]

    def forward(self, x: Tensor) -> Tensor:
        if self.with_cp and x.requires_grad:
            return checkpoint(self, self._forward, x)
        return self._forward(x)

    def _forward(self, x: Tensor) -> Tensor:
        branch = self.branch(x)
        identity = x if self.downsample is None else self.downsample(x)
        return self.step(identity, branch, self.last_norm)


class StepBasicBlock(_StepBlock, BasicBlock):
    """Post-activation block of two 3x3 convolutions.

    Arguments are those of mmpretrain's ``BasicBlock``.
    """

    @property
    def last_norm(self) -> nn.Module:
        return self.norm2

    def branch(self, x: Tensor) -> Tensor:
        return self.conv2(self.relu(self.norm1(self.conv1(x))))


class StepBottleneck(_StepBlock, Bottleneck):
    """Post-activation block of a 1x1, a 3x3 and a 1x1 convolution.

    Arguments are those of mmpretrain's ``Bottleneck``.
    """

    @property
    def last_norm(self) -> nn.Module:
        return self.norm3

    def branch(self, x: Tensor) -> Tensor:
        x = self.relu(self.norm1(self.conv1(x)))
        return self.conv3(self.relu(self.norm2(self.conv2(x))))


class StepResNeXtBottleneck(StepBottleneck, ResNeXtBottleneck):
    """Post-activation bottleneck whose 3x3 convolution is grouped.

    Arguments are those of mmpretrain's ``Bottleneck`` of ResNeXt.
    """


class _PreActBlock(_StepBlock):
    """Pre-activation: each norm stands before its convolution.

    Identity Mappings in Deep Residual Networks, ECCV 2016,
    https://arxiv.org/abs/1603.05027. Where the shape changes, the projection
    takes the activated input and has no norm of its own, as there.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.step = ResidualStep(drop_path=self.drop_path)
        # Norm k stands before convolution k and has its input's width.
        for k, conv in enumerate(self.convs, 1):
            _, norm = build_norm_layer(self.norm_cfg, conv.in_channels)
            setattr(self, getattr(self, f'norm{k}_name'), norm)
        if self.downsample is not None:
            del self.downsample[-1]

    def conv_norm_pairs(self) -> list[tuple[str, str]]:
        pairs = super().conv_norm_pairs()
        return [(conv, norm) for (conv, _), (_, norm) in zip(pairs, pairs[1:])]

    def _forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.norm1(x))
        identity = x if self.downsample is None else self.downsample(out)
        out = self.conv1(out)
        for norm, conv in zip(self.norms[1:], self.convs[1:]):
            out = conv(self.relu(norm(out)))
        return self.step(identity, out)


class PreActStepBasicBlock(_PreActBlock, BasicBlock):
    """Pre-activation block of two 3x3 convolutions."""

    @property
    def convs(self) -> tuple:
        return self.conv1, self.conv2

    @property
    def norms(self) -> tuple:
        return self.norm1, self.norm2


class PreActStepBottleneck(_PreActBlock, Bottleneck):
    """Pre-activation block of a 1x1, a 3x3 and a 1x1 convolution."""

    @property
    def convs(self) -> tuple:
        return self.conv1, self.conv2, self.conv3

    @property
    def norms(self) -> tuple:
        return self.norm1, self.norm2, self.norm3


class StepResLayer(ResLayer, BaseModule):
    """The host's stage, made to pass ``init_weights`` on to its blocks.

    mmpretrain's is a plain ``nn.Sequential``, at which mmengine's recursion
    ends: an attention would keep what the backbone's ``init_cfg`` gave it.

    Where IEBN is the norm, the projection keeps a plain BN (a reading, as is
    its converse: the parameter counts of Table 1 fit either).
    """

    def __init__(self, *args, norm_cfg: dict, **kwargs):
        super().__init__(*args, norm_cfg=norm_cfg, **kwargs)
        downsample = self[0].downsample
        if downsample is not None and isinstance(downsample[-1], IEBN):
            plain_cfg = {**norm_cfg, 'type': 'BN'}
            plain_cfg.pop('init_step', None)
            _, downsample[-1] = build_norm_layer(plain_cfg,
                                                 self[0].out_channels)


def warn_of_frozen_starts(backbone: nn.Module) -> None:
    """Warn of attentions with ``init_step`` whose parameters are frozen.

    Args:
        backbone (nn.Module): A backbone whose stages are frozen already.
    """
    names = [
        name.rpartition('.')[0] for name, module in backbone.named_modules()
        if isinstance(module, ResidualStep)
        and getattr(module.attention, 'init_step', None) is not None
        and not any(p.requires_grad for p in module.attention.parameters())
    ]
    if names:
        warnings.warn(
            f'{type(backbone).__name__}: frozen_stages='
            f'{backbone.frozen_stages} freezes the attentions of '
            f'{", ".join(names)}, whose step then stays at their init_step '
            'for ever; leave these blocks out with blocks=, or freeze fewer '
            'stages',
            stacklevel=3)
