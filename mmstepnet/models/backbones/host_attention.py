"""MMPretrain's self-attention, and modules that take its place."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor


def check_no_dropout(host: Any) -> None:
    """Refuse a self-attention that drops its weights, which we never have.

    Raises:
        ValueError: It does.
    """
    if host.attn_drop:
        raise ValueError(
            'there are no attention weights to drop here, got attn_drop '
            f'{host.attn_drop}: leave attn_drop_rate out of layer_cfgs and '
            'use drop_rate')


def take_over(state_dict: dict[str, Tensor], prefix: str,
              names: Mapping[str, str]) -> None:
    """Rename what MMPretrain's ``MultiheadAttention`` has saved, in place.

    Its one layer ``qkv`` is three layers here, and those that a module does
    not have are left out.

    Args:
        state_dict (dict): Weights of a model.
        prefix (str): Name of the attention in it, with a dot.
        names (Mapping[str, str]): Our names of the layers ``'query'``,
            ``'key'``, ``'value'`` and ``'proj'``, where there are any.
    """
    for kind in ('weight', 'bias'):
        found = {}
        if f'{prefix}proj.{kind}' in state_dict:
            found['proj'] = state_dict.pop(f'{prefix}proj.{kind}')
        if f'{prefix}qkv.{kind}' in state_dict:
            joint = state_dict.pop(f'{prefix}qkv.{kind}')
            found.update(zip(('query', 'key', 'value'), joint.chunk(3)))
        state_dict.update({
            f'{prefix}{names[layer]}.{kind}': value
            for layer, value in found.items() if layer in names
        })
