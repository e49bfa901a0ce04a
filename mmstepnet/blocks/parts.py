"""The last layer of nested sequences, and what stands before it.

A sequence in a wrapper, with hooks or with a ``forward`` that was set on it
is one layer: it is called.
"""

import torch.nn as nn
from torch import Tensor


def is_set(module: nn.Module) -> bool:
    """Whether a module has hooks or a ``forward`` of its own."""
    return bool(module._forward_hooks or module._forward_pre_hooks
                or 'forward' in vars(module))


def last(layers: nn.Module) -> nn.Module | None:
    """The last layer of a sequence, of its last sequence and so on.

    None where :func:`all_but_last` applies it, too.
    """
    if not isinstance(layers, nn.Sequential) or is_set(layers):
        return None
    end = layers[-1]
    return last(end) if isinstance(end, nn.Sequential) else end


def all_but_last(layers: nn.Module, x: Tensor) -> Tensor:
    """Apply a sequence without its :func:`last` layer."""
    if not isinstance(layers, nn.Sequential) or is_set(layers):
        return layers(x)
    *first, end = layers
    for layer in first:
        x = layer(x)
    return all_but_last(end, x) if isinstance(end, nn.Sequential) else x
