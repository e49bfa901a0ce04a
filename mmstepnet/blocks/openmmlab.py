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
    return block.conv3(block.relu(block.norm2(block.conv2(x))))


def _se_bottleneck(block: Any, x: Tensor) -> Tensor:
    return block.se_layer(block.norm3(_bottleneck(block, x)))


def _res2net(block: Any, x: Tensor) -> Tensor:
    x = block.relu(block.norm1(block.conv1(x)))
    return block.conv3(_scales(block, x, block.stage_type == 'normal'))


def _scales(block: Any, x: Tensor, keeps_rest: bool) -> Tensor:
    parts = x.split(block.width, 1)  # torch.fx cannot iterate over them
    outs = []
    for k, (conv, norm) in enumerate(zip(block.convs, block.bns)):
        part = parts[k]
        if outs and block.stage_type != 'stage':
            part = part + outs[-1]
        outs.append(block.relu(norm(conv(part.contiguous()))))
    outs.append(parts[-1] if keeps_rest else block.pool(parts[-1]))
    return torch.cat(outs, 1)


def _resnest(block: Any, x: Tensor) -> Tensor:
    x = block.conv2(block.relu(block.norm1(block.conv1(x))))
    return block.conv3(block.avd_layer(x) if block.avg_down_stride else x)


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
register_block(
    'mmpose.models.backbones.resnet.Bottleneck',
    StepDescription(_bottleneck, norm='norm3', **BOTTLENECK),
    forwards={'91bdd1a91797': TRIED['mmpose']})
for scope in ('mmpretrain', 'mmpose'):
    register_block(
        f'{scope}.models.backbones.seresnet.SEBottleneck',
        StepDescription(_se_bottleneck, **BOTTLENECK),
        forwards={'015271eb0ad1': TRIED[scope]})
    register_block(
        f'{scope}.models.backbones.resnest.Bottleneck',
        StepDescription(_resnest, norm='norm3', **BOTTLENECK),
        forwards={'f4894792745b': TRIED[scope]})
register_block(
    'mmpretrain.models.backbones.res2net.Bottle2neck',
    StepDescription(_res2net, norm='norm3', **BOTTLENECK),
    forwards={'7b24a69dcc91': TRIED['mmpretrain']})

# MMDetection's and MMSegmentation's bottlenecks take plugins.


def _with_plugins(block: Any, x: Tensor, k: int) -> Tensor:
    if not block.with_plugins:
        return x
    names = getattr(block, f'after_conv{k}_plugin_names')
    return block.forward_plugin(x, names)


def _norm_before_plugins(block: Any) -> nn.Module | None:
    """The last norm, None where plugins stand behind it."""
    plugins = block.with_plugins and block.after_conv3_plugin_names
    return None if plugins else block.norm3


def _behind_norm3(block: Any, x: Tensor) -> Tensor:
    if _norm_before_plugins(block) is not None:
        return x
    return _with_plugins(block, block.norm3(x), 3)


def _plugin_bottleneck(block: Any, x: Tensor) -> Tensor:
    x = block.relu(block.norm1(block.conv1(x)))
    x = _with_plugins(block, x, 1)
    x = block.relu(block.norm2(block.conv2(x)))
    x = _with_plugins(block, x, 2)
    return _behind_norm3(block, block.conv3(x))


def _plugin_resnest(block: Any, x: Tensor) -> Tensor:
    x = block.relu(block.norm1(block.conv1(x)))
    x = block.conv2(_with_plugins(block, x, 1))
    x = block.avd_layer(x) if block.avg_down_stride else x
    x = _with_plugins(block, x, 2)
    return _behind_norm3(block, block.conv3(x))


def _plugin_res2net(block: Any, x: Tensor) -> Tensor:
    x = block.relu(block.norm1(block.conv1(x)))
    x = _with_plugins(block, x, 1)
    x = _scales(block, x,
                   block.stage_type == 'normal' or block.conv2_stride == 1)
    x = _with_plugins(block, x, 2)
    return _behind_norm3(block, block.conv3(x))


PLUGINS: dict[str, Any] = dict(norm=_norm_before_plugins, **BOTTLENECK)
for scope in ('mmdet', 'mmseg'):
    for name, branch, found in (
            ('resnet.Bottleneck', _plugin_bottleneck, '20fba8fe42be'),
            ('resnest.Bottleneck', _plugin_resnest, '93ee5c1f9506')):
        register_block(
            f'{scope}.models.backbones.{name}',
            StepDescription(branch, **PLUGINS),
            forwards={found: TRIED[scope]})
register_block(
    'mmdet.models.backbones.res2net.Bottle2neck',
    StepDescription(_plugin_res2net, **PLUGINS),
    forwards={'f8ceec7ed316': TRIED['mmdet']})
