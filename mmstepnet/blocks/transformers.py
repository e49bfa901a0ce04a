"""Residual blocks of Hugging Face's transformers."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from .description import StepDescription, register_block
from .parts import is_set

TRIED = 'transformers 5.23.0'

# --- ResNet, RegNet ----------------------------------------------------------


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

# --- DETR's encoder ----------------------------------------------------------
# Batches of images of several sizes are padded, and each block is given a
# mask: found by running it would be refused.


def _attn(block: Any, x: Tensor, attention_mask=None,
          spatial_position_embeddings=None, **kwargs) -> Tensor:
    f, _ = block.self_attn(
        hidden_states=x, attention_mask=attention_mask,
        position_embeddings=spatial_position_embeddings, **kwargs)
    return torch.dropout(f, block.dropout, block.training)


def _out(block: Any, x: Tensor) -> Tensor:
    x = block.final_layer_norm(x)
    if block.training:  # the host's guard against infinities in half precision
        limit = torch.finfo(x.dtype).max - 1000
        x = x.clamp(-limit, limit)
    return x


register_block(
    'transformers.models.detr.modeling_detr.DetrEncoderLayer',
    StepDescription(
        _attn, width='final_layer_norm', activation='self_attn_layer_norm',
        layout='NLC', name='attn_step'),
    StepDescription(
        lambda block, x: block.mlp(x), width='final_layer_norm',
        activation=lambda block: partial(_out, block), layout='NLC',
        name='mlp_step'),
    forwards={'6bfb436538a8': TRIED})
