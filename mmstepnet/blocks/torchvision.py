"""Residual blocks of torchvision."""

from typing import Any

from torch import Tensor

from .description import StepDescription, register_block
from .parts import all_but_last, last

TRIED = 'torchvision 0.26.0, the same in 0.16.2 and 0.21.0'


def _basic(block: Any, x: Tensor) -> Tensor:
    return block.conv2(block.relu(block.bn1(block.conv1(x))))


def _bottleneck(block: Any, x: Tensor) -> Tensor:
    x = block.relu(block.bn1(block.conv1(x)))
    return block.conv3(block.relu(block.bn2(block.conv2(x))))


register_block(
    'torchvision.models.resnet.BasicBlock',
    StepDescription(
        _basic, width='conv2', norm='bn2', identity='downsample',
        activation='relu'),
    forwards={'e469bbb0e395': TRIED})
register_block(
    'torchvision.models.resnet.Bottleneck',
    StepDescription(
        _bottleneck, width='conv3', norm='bn3', identity='downsample',
        activation='relu'),
    forwards={'ff89db889084': TRIED})
register_block(
    'torchvision.models.regnet.ResBottleneckBlock',
    StepDescription(
        lambda block, x: all_but_last(block.f, x), width='f',
        norm=lambda block: last(block.f), identity='proj',
        activation='activation'),
    forwards={'253da56cde00': TRIED})
register_block(
    'torchvision.models.mobilenetv2.InvertedResidual',
    StepDescription(
        lambda block, x: all_but_last(block.conv, x), width='conv',
        norm=lambda block: last(block.conv)),
    residual='use_res_connect', forwards={'aff6a950f1d0': TRIED})
for name, found, drop_path in (
        ('mobilenetv3.InvertedResidual', 'cc9a83a58e8d', None),
        ('efficientnet.MBConv', '43f006128f39', 'stochastic_depth')):
    register_block(
        f'torchvision.models.{name}',
        StepDescription(
            lambda block, x: all_but_last(block.block, x), width='block',
            norm=lambda block: last(block.block), drop_path=drop_path),
        residual='use_res_connect', forwards={found: TRIED})
register_block(
    # Nothing that running cannot tell, but it stands among MBConvs.
    'torchvision.models.efficientnet.FusedMBConv',
    StepDescription(
        lambda block, x: block.block(x), width='block',
        drop_path='stochastic_depth'),
    residual='use_res_connect', forwards={'43f006128f39': TRIED})
