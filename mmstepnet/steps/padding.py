"""Tokens that a block's steps do not pool over, by the masks it is given."""

from collections.abc import Callable
from functools import cache
from inspect import signature
from typing import Any

import torch
from torch import Tensor

HIDDEN = -5e3
"""What is less than this, added to an attention's logits, hides a token."""


def masks_of(forward: Callable, args: tuple,
             kwargs: dict) -> dict[str, Tensor]:
    """Masks that a block's ``forward`` is given, by their names."""
    given = {**dict(zip(_parameters(forward), args)), **kwargs}
    return {name: value for name, value in given.items()
            if 'mask' in name and isinstance(value, Tensor)}


@cache
def _parameters(forward: Callable) -> tuple[str, ...]:
    return tuple(signature(forward).parameters)


class UnknownMaskError(ValueError):
    """It cannot be told which tokens a mask hides."""


def kept(masks: dict[str, Tensor], samples: int, tokens: int) -> Tensor:
    """Tokens that no mask hides.

    Two kinds are known: PyTorch's ``key_padding_mask``, (N, L), True where a
    token is hidden, and transformers' masks of attention, (N, heads, queries,
    L), each but L may be 1, True or 1 where a token is seen. Either may be
    what is added to the logits.

    Args:
        masks (dict[str, Tensor]): One or more by their names.
        samples (int): Number of samples N.
        tokens (int): Number of tokens L of a sample.

    Returns:
        Tensor: Whether a token is kept, (N, L).

    Raises:
        UnknownMaskError: A mask is of another kind, or of another's tokens.
    """
    result: Any = True
    for name, mask in masks.items():
        padding = name.endswith('key_padding_mask')
        if (mask.dim() != (2 if padding else 4) or mask.shape[-1] != tokens
                or mask.shape[0] not in (1, samples)
                or 'encoder' in name or 'memory' in name):
            raise UnknownMaskError(
                f'is given {name} {tuple(mask.shape)}, of which it is not '
                f'known which of {samples} × {tokens} tokens it hides; its '
                f'steps would pool over these')
        if mask.is_floating_point():
            known = mask <= 0 if padding else (mask <= 0) | (mask == 1)
            torch._assert_async(known.all(), f'{name} has other numbers than '
                                f'a mask, and which tokens it hides is not '
                                f'known')
            ones = (mask > 0).any()
            seen = (mask > HIDDEN) & ((mask > 0) | ~ones)
        else:
            seen = mask.bool() != padding
        if not padding:
            seen = seen.flatten(1, 2).any(1)
        result = seen & result
    return result.expand(samples, tokens)
