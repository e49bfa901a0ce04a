"""The last layer of nested sequences, and what stands before it."""

import torch.nn as nn
from torch import Tensor


def last(layers: nn.Module) -> nn.Module:
    """The last layer of a sequence, of its last sequence and so on."""
    while isinstance(layers, nn.Sequential):
        layers = layers[-1]
    return layers


def all_but_last(layers: nn.Sequential, x: Tensor) -> Tensor:
    """Apply a sequence without its :func:`last` layer."""
    *first, end = layers
    for layer in first:
        x = layer(x)
    return all_but_last(end, x) if isinstance(end, nn.Sequential) else x
