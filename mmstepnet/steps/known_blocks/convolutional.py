"""Residual networks of convolutions in torchvision, timm and Hugging Face."""

import torch
import torch.nn as nn
from torch import Tensor

from .description import StepDescription
from .forwards import known
from .parts import all_but_last, is_set, last

# --- torchvision -------------------------------------------------------------


def _torchvision_basic(block: nn.Module, x: Tensor) -> Tensor:
    return block.conv2(block.relu(block.bn1(block.conv1(x))))


def _torchvision_bottleneck(block: nn.Module, x: Tensor) -> Tensor:
    x = block.relu(block.bn1(block.conv1(x)))
    return block.conv3(block.relu(block.bn2(block.conv2(x))))


known(
    'torchvision.models.resnet.BasicBlock',
    StepDescription(
        _torchvision_basic, width='conv2', norm='bn2', identity='downsample',
        activation='relu'))
known(
    'torchvision.models.resnet.Bottleneck',
    StepDescription(
        _torchvision_bottleneck, width='conv3', norm='bn3',
        identity='downsample', activation='relu'))
known(
    'torchvision.models.regnet.ResBottleneckBlock',
    StepDescription(
        lambda block, x: all_but_last(block.f, x),
        width='f',
        norm=lambda block: last(block.f), identity='proj',
        activation='activation'))

# --- timm --------------------------------------------------------------------


def _behind_timm_norm(block: nn.Module, x: Tensor, norm: str) -> Tensor:
    """An SE behind the norm is part of f, and the step has no norm then."""
    return x if block.se is None else block.se(getattr(block, norm)(x))


def _timm_basic(block: nn.Module, x: Tensor) -> Tensor:
    x = block.aa(block.act1(block.drop_block(block.bn1(block.conv1(x)))))
    return _behind_timm_norm(block, block.conv2(x), 'bn2')


def _timm_bottleneck(block: nn.Module, x: Tensor) -> Tensor:
    x = block.act1(block.bn1(block.conv1(x)))
    x = block.aa(block.act2(block.drop_block(block.bn2(block.conv2(x)))))
    return _behind_timm_norm(block, block.conv3(x), 'bn3')


def _timm_res2net(block: nn.Module, x: Tensor) -> Tensor:
    x = block.relu(block.bn1(block.conv1(x)))
    x = block.conv3(block.drop_block(_timm_scales(block, x)))
    return _behind_timm_norm(block, x, 'bn3')


def _timm_scales(block: nn.Module, x: Tensor) -> Tensor:
    parts = x.split(block.width, 1)
    outs = []
    for part, conv, bn in zip(parts, block.convs, block.bns):
        if outs and not block.is_first:
            part = part + outs[-1]
        outs.append(block.relu(bn(conv(part))))
    if block.scale > 1:
        rest = parts[-1]
        outs.append(rest if block.pool is None else block.pool(rest))
    return torch.cat(outs, 1)


def _timm_resnest(block: nn.Module, x: Tensor) -> Tensor:
    x = block.act1(block.bn1(block.conv1(x)))
    if block.avd_first is not None:
        x = block.avd_first(x)
    x = block.act2(block.drop_block(block.bn2(block.conv2(x))))
    if block.avd_last is not None:
        x = block.avd_last(x)
    return block.conv3(x)


def _drops_no_identity(block: nn.Module) -> bool:
    if block.drop_path is not None:
        raise ValueError("timm's ResNeSt with drop_path_rate drops the "
                         'identity, not f; build it without')
    return True


def _timm_regnet(block: nn.Module, x: Tensor) -> Tensor:
    return block.conv3(block.se(block.conv2(block.conv1(x))))


known(
    'timm.models.resnet.BasicBlock',
    StepDescription(
        _timm_basic, width='conv2',
        norm=lambda block: block.bn2 if block.se is None else None,
        identity='downsample', activation='act2', drop_path='drop_path'))
TIMM_BOTTLENECK = dict(
    width='conv3', norm=lambda block: block.bn3 if block.se is None else None,
    identity='downsample', drop_path='drop_path')
known(
    'timm.models.resnet.Bottleneck',
    StepDescription(_timm_bottleneck, activation='act3', **TIMM_BOTTLENECK))
known(
    'timm.models.res2net.Bottle2neck',
    StepDescription(_timm_res2net, activation='relu', **TIMM_BOTTLENECK))
known(
    'timm.models.resnest.ResNestBottleneck',
    StepDescription(
        _timm_resnest, width='conv3', norm='bn3', identity='downsample',
        activation='act3'),
    residual=_drops_no_identity)
known(
    'timm.models.regnet.Bottleneck',
    StepDescription(
        _timm_regnet, width='conv3', identity='downsample',
        activation='act3', drop_path='drop_path'),
    residual=lambda block: block.downsample is not None)
known(
    'timm.models.cspnet.BottleneckBlock',
    StepDescription(
        lambda block, x: block.attn3(
            block.conv3(block.attn2(block.conv2(block.conv1(x))))),
        width='conv3', activation='act3', drop_path='drop_path'))
known(
    'timm.models.cspnet.DarkBlock',
    StepDescription(
        lambda block, x: block.conv2(block.attn(block.conv1(x))),
        width='conv2', drop_path='drop_path'))

# --- Hugging Face ------------------------------------------------------------


def _hf_layers(block: nn.Module, x: Tensor) -> Tensor:
    if _is_one(block):
        return block.layer(x)
    *layers, end = block.layer
    for layer in layers:
        x = layer(x)
    return end.convolution(x)


def _is_one(block: nn.Module) -> bool:
    """Whether all that is in a block's branch must be called as one."""
    end = block.layer[-1]
    return is_set(block.layer) or is_set(end) or (
        'convolution' not in end._modules)  # a wrapper


for name in ('resnet.modeling_resnet.ResNetBasicLayer',
             'resnet.modeling_resnet.ResNetBottleNeckLayer',
             'regnet.modeling_regnet.RegNetXLayer',
             'regnet.modeling_regnet.RegNetYLayer'):
    known(
        f'transformers.models.{name}',
        StepDescription(
            _hf_layers, width='layer',
            norm=lambda block: (
                None if _is_one(block) else block.layer[-1].normalization),
            identity='shortcut', activation='activation'))
