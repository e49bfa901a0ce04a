"""The weights of the host's self-attention under the names of ours."""

from collections.abc import Mapping

from torch import Tensor


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
