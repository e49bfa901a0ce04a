"""Residual blocks of timm."""

from typing import Any

import torch
from torch import Tensor

from .description import StepDescription, register_block

TRIED = 'timm 1.0.31, the same in 0.9.16, 1.0.9 and 1.0.19'


def _behind_norm(block: Any, x: Tensor, norm: str) -> Tensor:
    """An SE behind the norm is part of f, and the step has no norm then."""
    return x if block.se is None else block.se(getattr(block, norm)(x))


def _basic(block: Any, x: Tensor) -> Tensor:
    x = block.aa(block.act1(block.drop_block(block.bn1(block.conv1(x)))))
    return _behind_norm(block, block.conv2(x), 'bn2')


def _bottleneck(block: Any, x: Tensor) -> Tensor:
    x = block.act1(block.bn1(block.conv1(x)))
    x = block.aa(block.act2(block.drop_block(block.bn2(block.conv2(x)))))
    return _behind_norm(block, block.conv3(x), 'bn3')


def _res2net(block: Any, x: Tensor) -> Tensor:
    x = block.relu(block.bn1(block.conv1(x)))
    x = block.conv3(block.drop_block(_scales(block, x)))
    return _behind_norm(block, x, 'bn3')


def _scales(block: Any, x: Tensor) -> Tensor:
    parts = x.split(block.width, 1)  # torch.fx cannot iterate over them
    outs = []
    for k, (conv, bn) in enumerate(zip(block.convs, block.bns)):
        part = parts[k]
        if outs and not block.is_first:
            part = part + outs[-1]
        outs.append(block.relu(bn(conv(part))))
    if block.scale > 1:
        rest = parts[-1]
        outs.append(rest if block.pool is None else block.pool(rest))
    return torch.cat(outs, 1)


def _resnest(block: Any, x: Tensor) -> Tensor:
    x = block.act1(block.bn1(block.conv1(x)))
    if block.avd_first is not None:
        x = block.avd_first(x)
    x = block.act2(block.drop_block(block.bn2(block.conv2(x))))
    if block.avd_last is not None:
        x = block.avd_last(x)
    return block.conv3(x)


def _drops_no_identity(block: Any) -> bool:
    if block.drop_path is not None:
        raise ValueError("timm's ResNeSt with drop_path_rate drops the "
                         'identity, not f; build it without')
    return True


def _regnet(block: Any, x: Tensor) -> Tensor:
    return block.conv3(block.se(block.conv2(block.conv1(x))))


BOTTLENECK: dict[str, Any] = dict(
    width='conv3', norm=lambda block: block.bn3 if block.se is None else None,
    identity='downsample', drop_path='drop_path')
register_block(
    'timm.models.resnet.BasicBlock',
    StepDescription(
        _basic, width='conv2',
        norm=lambda block: block.bn2 if block.se is None else None,
        identity='downsample', activation='act2', drop_path='drop_path'),
    forwards={'459b888dd004': TRIED})
register_block(
    'timm.models.resnet.Bottleneck',
    StepDescription(_bottleneck, activation='act3', **BOTTLENECK),
    forwards={'58c1c81d9c8b': TRIED})
register_block(
    'timm.models.res2net.Bottle2neck',
    StepDescription(_res2net, activation='relu', **BOTTLENECK),
    forwards={'168a6143acc4': 'timm 1.0.31'})
register_block(
    'timm.models.resnest.ResNestBottleneck',
    StepDescription(
        _resnest, width='conv3', norm='bn3', identity='downsample',
        activation='act3'),
    residual=_drops_no_identity, forwards={'38cda47c39b3': 'timm 1.0.31'})
register_block(
    'timm.models.regnet.Bottleneck',
    StepDescription(
        _regnet, width='conv3', identity='downsample', activation='act3',
        drop_path='drop_path'),
    residual=lambda block: block.downsample is not None,
    forwards={'0017c95c5740': TRIED})
