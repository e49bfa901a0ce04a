"""DETR's encoder in Hugging Face.

Batches of images of several sizes are padded, and each block is given a mask:
found by running it would be refused.
"""

from functools import partial

import torch
import torch.nn as nn
from torch import Tensor

from .description import StepDescription
from .forwards import known


def _attn(block: nn.Module, x: Tensor, attention_mask=None,
          spatial_position_embeddings=None, **kwargs) -> Tensor:
    f, _ = block.self_attn(
        hidden_states=x, attention_mask=attention_mask,
        position_embeddings=spatial_position_embeddings, **kwargs)
    return torch.dropout(f, block.dropout, block.training)


def _out(block: nn.Module, x: Tensor) -> Tensor:
    x = block.final_layer_norm(x)
    if block.training:  # the host's guard against infinities in half precision
        limit = torch.finfo(x.dtype).max - 1000
        x = x.clamp(-limit, limit)
    return x


known(
    'transformers.models.detr.modeling_detr.DetrEncoderLayer',
    StepDescription(
        _attn, width='final_layer_norm', activation='self_attn_layer_norm',
        layout='NLC', name='attn_step'),
    StepDescription(
        lambda block, x: block.mlp(x), width='final_layer_norm',
        activation=lambda block: partial(_out, block), layout='NLC',
        name='mlp_step'))
