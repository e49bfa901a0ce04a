"""The last layer of nested sequences, and what stands before it.

A sequence in a wrapper, with hooks or with a ``forward`` of its own is one
layer: it is called.
"""

from typing import Any

import torch.nn as nn
from torch import Tensor


def is_set(module: nn.Module) -> bool:
    """Whether a module has hooks or a ``forward`` of its own."""
    return bool(module._forward_hooks or module._forward_pre_hooks
                or module._backward_hooks or module._backward_pre_hooks
                or 'forward' in vars(module))


def _is_sequence(module: nn.Module) -> bool:
    """Whether a module calls its layers one by one, and does nothing else."""
    return (getattr(type(module), 'forward', None) is nn.Sequential.forward
            and not is_set(module))


def last(layers: Any) -> nn.Module | None:
    """The last layer of a sequence, of its last sequence and so on.

    None where :func:`all_but_last` applies it, too.
    """
    if not _is_sequence(layers):
        return None
    end = layers[-1]
    return last(end) if isinstance(end, nn.Sequential) else end


def all_but_last(layers: Any, x: Tensor) -> Tensor:
    """Apply a sequence without its :func:`last` layer."""
    if not _is_sequence(layers):
        return layers(x)
    *first, end = layers
    for layer in first:
        x = layer(x)
    return all_but_last(end, x) if isinstance(end, nn.Sequential) else x
