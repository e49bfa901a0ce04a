"""Residual networks of convolutions in OpenMMLab, MMCV's plugins included."""

import torch
import torch.nn as nn
from torch import Tensor

from .description import StepDescription
from .forwards import known


def _mm_basic(block: nn.Module, x: Tensor) -> Tensor:
    return block.conv2(block.relu(block.norm1(block.conv1(x))))


def _mm_bottleneck(block: nn.Module, x: Tensor) -> Tensor:
    x = block.relu(block.norm1(block.conv1(x)))
    return block.conv3(block.relu(block.norm2(block.conv2(x))))


def _mm_se_bottleneck(block: nn.Module, x: Tensor) -> Tensor:
    return block.se_layer(block.norm3(_mm_bottleneck(block, x)))


def _mm_res2net(block: nn.Module, x: Tensor) -> Tensor:
    x = block.relu(block.norm1(block.conv1(x)))
    return block.conv3(_mm_scales(block, x, block.stage_type == 'normal'))


def _mm_scales(block: nn.Module, x: Tensor, keeps_rest: bool) -> Tensor:
    parts = x.split(block.width, 1)
    outs = []
    for part, conv, norm in zip(parts, block.convs, block.bns):
        if outs and block.stage_type != 'stage':
            part = part + outs[-1]
        outs.append(block.relu(norm(conv(part.contiguous()))))
    outs.append(parts[-1] if keeps_rest else block.pool(parts[-1]))
    return torch.cat(outs, 1)


def _mm_resnest(block: nn.Module, x: Tensor) -> Tensor:
    x = block.conv2(block.relu(block.norm1(block.conv1(x))))
    return block.conv3(block.avd_layer(x) if block.avg_down_stride else x)


MM_BOTTLENECK = dict(width='conv3', identity='downsample', activation='relu')
for scope in ('mmpretrain', 'mmdet', 'mmseg'):
    drop_path = 'drop_path' if scope == 'mmpretrain' else None
    known(
        f'{scope}.models.backbones.resnet.BasicBlock',
        StepDescription(
            _mm_basic, width='conv2', norm='norm2', identity='downsample',
            activation='relu', drop_path=drop_path))
known(
    'mmpretrain.models.backbones.resnet.Bottleneck',
    StepDescription(
        _mm_bottleneck, norm='norm3', drop_path='drop_path', **MM_BOTTLENECK))
known(
    'mmpretrain.models.backbones.seresnet.SEBottleneck',
    StepDescription(_mm_se_bottleneck, **MM_BOTTLENECK))
known(
    'mmpretrain.models.backbones.res2net.Bottle2neck',
    StepDescription(_mm_res2net, norm='norm3', **MM_BOTTLENECK))
known(
    'mmpretrain.models.backbones.resnest.Bottleneck',
    StepDescription(_mm_resnest, norm='norm3', **MM_BOTTLENECK))

# MMDetection's and MMSegmentation's bottlenecks take plugins.


def _with_plugins(block: nn.Module, x: Tensor, k: int) -> Tensor:
    if not block.with_plugins:
        return x
    names = getattr(block, f'after_conv{k}_plugin_names')
    return block.forward_plugin(x, names)


def _norm_before_plugins(block: nn.Module) -> nn.Module | None:
    """The last norm, None where plugins stand behind it."""
    plugins = block.with_plugins and block.after_conv3_plugin_names
    return None if plugins else block.norm3


def _behind_norm3(block: nn.Module, x: Tensor) -> Tensor:
    if _norm_before_plugins(block) is not None:
        return x
    return _with_plugins(block, block.norm3(x), 3)


def _plugin_bottleneck(block: nn.Module, x: Tensor) -> Tensor:
    x = block.relu(block.norm1(block.conv1(x)))
    x = _with_plugins(block, x, 1)
    x = block.relu(block.norm2(block.conv2(x)))
    x = _with_plugins(block, x, 2)
    return _behind_norm3(block, block.conv3(x))


def _plugin_resnest(block: nn.Module, x: Tensor) -> Tensor:
    x = block.relu(block.norm1(block.conv1(x)))
    x = block.conv2(_with_plugins(block, x, 1))
    x = block.avd_layer(x) if block.avg_down_stride else x
    x = _with_plugins(block, x, 2)
    return _behind_norm3(block, block.conv3(x))


def _plugin_res2net(block: nn.Module, x: Tensor) -> Tensor:
    x = block.relu(block.norm1(block.conv1(x)))
    x = _with_plugins(block, x, 1)
    x = _mm_scales(block, x,
                   block.stage_type == 'normal' or block.conv2_stride == 1)
    x = _with_plugins(block, x, 2)
    return _behind_norm3(block, block.conv3(x))


PLUGINS = dict(norm=_norm_before_plugins, **MM_BOTTLENECK)
for scope in ('mmdet', 'mmseg'):
    for name, branch in (('resnet.Bottleneck', _plugin_bottleneck),
                         ('resnest.Bottleneck', _plugin_resnest)):
        known(
            f'{scope}.models.backbones.{name}',
            StepDescription(branch, **PLUGINS))
known(
    'mmdet.models.backbones.res2net.Bottle2neck',
    StepDescription(_plugin_res2net, **PLUGINS))

# The last norm and activation stand inside a ConvModule and are part of f.


def _mm_darknet(block: nn.Module, x: Tensor) -> Tensor:
    return block.conv2(block.conv1(x))


known(
    'mmpretrain.models.backbones.cspnet.DarknetBottleneck',
    StepDescription(_mm_darknet, width='conv2', drop_path='drop_path'),
    residual='add_identity')
for name in ('DarknetBottleneck', 'CSPNeXtBlock'):
    known(
        f'mmdet.models.layers.csp_layer.{name}',
        StepDescription(_mm_darknet, width='conv2'),
        residual='add_identity')
known(
    'mmdet.models.backbones.darknet.ResBlock',
    StepDescription(_mm_darknet, width='conv2'))
