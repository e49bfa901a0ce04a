"""What the weights of an attention do not say, written beside them."""

import json
import warnings
from typing import Any

import torch
import torch.nn as nn
from torch import Tensor

from mmstepnet.torch_version import has_values

KEY = '_extra_state'
"""PyTorch's name of it, behind the module's in a state dict."""

SIZE = 256
"""Bytes to whose multiple it is filled up with blanks: loaders that compare
shapes see the same one for other arguments."""


class Recorded(nn.Module):
    """Module whose state dict records its type and arguments.

    JSON as bytes in a tensor of uint8, which no cast and no average changes.
    A state dict without it loads as if it had none, strictly too.
    Subclasses have ``init_step``, and ``set_init_step``, which changes it.
    """

    init_step: float | None

    recorded: tuple[str, ...] = ()
    """Arguments that decide the step and that no shape shows, beside
    ``init_step``: attributes of these names."""

    recorded_sizes: tuple[str, ...] = ()
    """Arguments that shapes show: recorded, but not compared."""

    @property
    def recorded_type(self) -> str:
        """Name under which the class is known."""
        return type(self).__name__

    def set_init_step(self, init_step: float | None) -> None:
        """Let the step start elsewhere, see ``init_step``."""
        raise NotImplementedError

    def get_extra_state(self) -> Tensor:
        """The record: uint8, (256, ) or a multiple, on the CPU."""
        content = json.dumps(self.record()).encode()
        content = content.ljust(-(-len(content) // SIZE) * SIZE)
        # Not on the default device, which may be meta.
        return torch.tensor(list(content), dtype=torch.uint8, device='cpu')

    def set_extra_state(self, state: Tensor) -> None:
        """Compare a record with this module; take its ``init_step`` over.

        Args:
            state (Tensor): What :meth:`get_extra_state` gave.

        Raises:
            ValueError: It is that of another type or of other arguments, or
                no record.
        """
        if not has_values(state):
            return
        found, own = read_record(state), self.record()
        if any(found.get(name) != own[name]
               for name in ('type', *self.recorded)):
            raise ValueError(
                f'the weights are those of {_call(found)}, the model has '
                f'{_call(own)}: they would load and compute something else. '
                'Build the model with the arguments of the weights; without '
                f'the key {KEY!r} of the state dict they load nevertheless')
        init_step = found['init_step']
        if init_step != own['init_step']:
            self.set_init_step(init_step)
            warnings.warn(
                f'{own["type"]} was built with init_step={own["init_step"]} '
                f'and takes over init_step={init_step}, with which the '
                'weights that it loads were trained', stacklevel=2)

    def record(self) -> dict[str, Any]:
        """Type and arguments, but for ``channels``."""
        init_step = self.init_step
        return dict(
            type=self.recorded_type,
            init_step=None if init_step is None else float(init_step),
            **{name: getattr(self, name)
               for name in (*self.recorded, *self.recorded_sizes)})

    def _load_from_state_dict(self, state_dict, prefix, local_metadata,
                              strict, missing_keys, *args) -> None:
        key = prefix + KEY
        if next(self.parameters(), None) is not None and not any(
                name != key and name.startswith(prefix)
                for name in state_dict):
            if self.init_step is None:
                warnings.warn(
                    f'{self.recorded_type} finds no weights of its own in '
                    'what is loaded, and starts as in the paper, for training '
                    'from scratch: a pretrained network computes something '
                    'else with it. Let it start at a step of 1 by '
                    'init_step=1.0', stacklevel=2)
            if key in state_dict:
                # A record without weights tells nothing. transformers gives
                # such a one, of memory as it was, where its file has none.
                return
        try:
            super()._load_from_state_dict(
                state_dict, prefix, local_metadata, strict, missing_keys,
                *args)
        except ValueError as error:
            raise ValueError(f'{key}: {error}') from error
        if key in missing_keys:  # files of 0.2 and published weights
            missing_keys.remove(key)


def read_record(state: Tensor) -> dict[str, Any]:
    """What a record says.

    Raises:
        ValueError: It is none.
    """
    # Rounded: somebody may have cast or averaged it with the weights.
    content = bytes(
        state.detach().cpu().double().round().byte().flatten().tolist())
    try:
        found = json.loads(content)
        if not {'type', 'init_step'} <= found.keys():
            raise ValueError(f'it lacks its type or init_step: {found}')
    except (ValueError, AttributeError, RecursionError) as error:
        raise ValueError(f'this is no record of an attention: {error}; leave '
                         f'the key {KEY!r} out of the state dict') from error
    return found


def _call(record: dict[str, Any]) -> str:
    arguments = ', '.join(f'{name}={value!r}' for name, value in record.items()
                          if name not in ('type', 'init_step'))
    return f'{record["type"]}({arguments})'
