"""Residual blocks of OpenMMLab, MMCV's plugins included."""

from typing import Any

import torch
import torch.nn as nn
from torch import Tensor

from .description import StepDescription, register_block

TRIED = dict(
    mmpretrain='mmpretrain 1.3.6 (onedl), the same in 1.2.0',
    mmdet='mmdet 3.5.1 (onedl), the same in 3.3.0',
    mmseg='mmseg 1.4.2 (onedl), the same in 1.2.2',
    mmpose='mmpose 1.3.2')


def _basic(block: Any, x: Tensor) -> Tensor:
    return block.conv2(block.relu(block.norm1(block.conv1(x))))


def _bottleneck(block: Any, x: Tensor) -> Tensor:
    x = block.relu(block.norm1(block.conv1(x)))
    x = _plugged(block, x, 1)
    x = block.relu(block.norm2(block.conv2(x)))
    return _conv3(block, x)


def _se_bottleneck(block: Any, x: Tensor) -> Tensor:
    return block.se_layer(block.norm3(_bottleneck(block, x)))


def _resnest(block: Any, x: Tensor) -> Tensor:
    x = block.relu(block.norm1(block.conv1(x)))
    x = block.conv2(_plugged(block, x, 1))
    return _conv3(block, block.avd_layer(x) if block.avg_down_stride else x)


def _res2net(block: Any, x: Tensor) -> Tensor:
    x = block.relu(block.norm1(block.conv1(x)))
    x = _plugged(block, x, 1)
    return _conv3(block, _scales(block, x))


def _scales(block: Any, x: Tensor) -> Tensor:
    parts = x.split(block.width, 1)  # torch.fx cannot iterate over them
    outs = []
    for k, (conv, norm) in enumerate(zip(block.convs, block.bns)):
        part = parts[k]
        if outs and block.stage_type != 'stage':
            part = part + outs[-1]
        outs.append(block.relu(norm(conv(part.contiguous()))))
    # MMPretrain's pools without a stride, too.
    keeps_rest = block.stage_type == 'normal' or (
        hasattr(block, 'with_plugins') and block.conv2_stride == 1)
    outs.append(parts[-1] if keeps_rest else block.pool(parts[-1]))
    return torch.cat(outs, 1)


def _conv3(block: Any, x: Tensor) -> Tensor:
    x = block.conv3(_plugged(block, x, 2))
    if _last_norm(block) is not None:
        return x
    return _plugged(block, block.norm3(x), 3)


def _plugged(block: Any, x: Tensor, k: int) -> Tensor:
    """Behind the plugins of MMDetection and MMSegmentation, if any."""
    if not getattr(block, 'with_plugins', False):
        return x
    names = getattr(block, f'after_conv{k}_plugin_names')
    return block.forward_plugin(x, names)


def _last_norm(block: Any) -> nn.Module | None:
    """The norm behind the last convolution, None where plugins follow it."""
    plugged = getattr(
        block, 'with_plugins', False) and block.after_conv3_plugin_names
    return None if plugged else block.norm3


BOTTLENECK: dict[str, Any] = dict(
    width='conv3', identity='downsample', activation='relu')
for scope, found, drop_path in (('mmpretrain', 'a45ab44c6218', 'drop_path'),
                                ('mmdet', 'bdc829c6614c', None),
                                ('mmseg', 'bdc829c6614c', None),
                                ('mmpose', 'bdc829c6614c', None)):
    register_block(
        f'{scope}.models.backbones.resnet.BasicBlock',
        StepDescription(
            _basic, width='conv2', norm='norm2', identity='downsample',
            activation='relu', drop_path=drop_path),
        forwards={found: TRIED[scope]})
register_block(
    'mmpretrain.models.backbones.resnet.Bottleneck',
    StepDescription(
        _bottleneck, norm='norm3', drop_path='drop_path', **BOTTLENECK),
    forwards={'6f2e3792b3c5': TRIED['mmpretrain']})
for scope in ('mmpretrain', 'mmpose'):
    register_block(
        f'{scope}.models.backbones.seresnet.SEBottleneck',
        StepDescription(_se_bottleneck, **BOTTLENECK),
        forwards={'015271eb0ad1': TRIED[scope]})
for scope, name, branch, found in (
        ('mmpose', 'resnet.Bottleneck', _bottleneck, '91bdd1a91797'),
        ('mmdet', 'resnet.Bottleneck', _bottleneck, '20fba8fe42be'),
        ('mmseg', 'resnet.Bottleneck', _bottleneck, '20fba8fe42be'),
        ('mmpretrain', 'resnest.Bottleneck', _resnest, 'f4894792745b'),
        ('mmpose', 'resnest.Bottleneck', _resnest, 'f4894792745b'),
        ('mmdet', 'resnest.Bottleneck', _resnest, '93ee5c1f9506'),
        ('mmseg', 'resnest.Bottleneck', _resnest, '93ee5c1f9506'),
        ('mmpretrain', 'res2net.Bottle2neck', _res2net, '7b24a69dcc91'),
        ('mmdet', 'res2net.Bottle2neck', _res2net, 'f8ceec7ed316')):
    register_block(
        f'{scope}.models.backbones.{name}',
        StepDescription(branch, norm=_last_norm, **BOTTLENECK),
        forwards={found: TRIED[scope]})
