"""Residual blocks of Hugging Face's transformers."""

from typing import Any

from torch import Tensor

from .description import StepDescription, register_block
from .parts import is_set

TRIED = 'transformers 5.23.0'


def _layers(block: Any, x: Tensor) -> Tensor:
    if _is_one(block):
        return block.layer(x)
    *layers, end = block.layer
    for layer in layers:
        x = layer(x)
    return end.convolution(x)


def _is_one(block: Any) -> bool:
    """Whether all that is in a block's branch must be called as one."""
    end = block.layer[-1]
    return is_set(block.layer) or is_set(end) or (
        'convolution' not in end._modules)  # a wrapper


for name in ('resnet.modeling_resnet.ResNetBasicLayer',
             'resnet.modeling_resnet.ResNetBottleNeckLayer',
             'regnet.modeling_regnet.RegNetXLayer',
             'regnet.modeling_regnet.RegNetYLayer'):
    register_block(
        f'transformers.models.{name}',
        StepDescription(
            _layers, width='layer',
            norm=lambda block: (
                None if _is_one(block) else block.layer[-1].normalization),
            identity='shortcut', activation='activation'),
        forwards={'cf73c25d27ae': TRIED})
