"""Modules that take the place of MMPretrain's self-attention."""

from mmengine.model import BaseModule
from mmpretrain.models.utils import MultiheadAttention


class HostAttention(BaseModule):
    """A module that replaces the self-attention of a transformer's layer.

    It reads what the host's ``MultiheadAttention`` has saved. The host's one
    layer ``qkv`` is three layers here, and those that a module does not have
    are left out.

    Args:
        host (MultiheadAttention): The module to take the place of. Its
            dropout behind the projection and its layer scale are taken over.

    Raises:
        ValueError: The host drops attention weights, of which there are none.
    """

    def __init__(self, host: MultiheadAttention):
        super().__init__()
        if host.attn_drop:
            raise ValueError(
                'there are no attention weights to drop here, got attn_drop '
                f'{host.attn_drop}: leave attn_drop_rate out of layer_cfgs '
                'and use drop_rate'
            )
        self.proj_drop = host.proj_drop
        self.gamma1 = host.gamma1

    def _load_from_state_dict(self, state_dict, prefix, *args) -> None:
        names = {
            name.rpartition('.')[2]: name for name, _ in self.named_modules()
        }
        for kind in ('weight', 'bias'):
            found = {}
            if f'{prefix}proj.{kind}' in state_dict:
                found['proj'] = state_dict.pop(f'{prefix}proj.{kind}')
            if f'{prefix}qkv.{kind}' in state_dict:
                joint = state_dict.pop(f'{prefix}qkv.{kind}')
                found.update(zip(('query', 'key', 'value'), joint.chunk(3)))
            state_dict.update(
                {
                    f'{prefix}{names[layer]}.{kind}': value
                    for layer, value in found.items()
                    if layer in names
                }
            )
        super()._load_from_state_dict(state_dict, prefix, *args)
