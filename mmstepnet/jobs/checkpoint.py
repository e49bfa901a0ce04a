"""Checkpoints are data: reading them runs nothing that is in them."""

import codecs
import os.path as osp
import pickle
import re
from collections import Counter, OrderedDict
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn as nn
from mmengine.config import ConfigDict
from mmengine.logging import HistoryBuffer
from mmengine.runner import CheckpointLoader
from mmengine.runner import checkpoint as mmengine_checkpoint
from safetensors.torch import load_file

from mmstepnet.messages import shorten
from mmstepnet.tracing import unwrap

TRUST_FLAG = '--trust-checkpoint'

OTHER_MODEL = (
    'does not fit the model of this config; is it the checkpoint of another '
    'one?'
)

HAS_ALLOWLIST = hasattr(torch.serialization, 'safe_globals')
"""Whether ``weights_only`` can be told of further types: PyTorch 2.5."""

STEP = re.compile(r'(.*?(?:\b|_)step)\.attention\.')
"""What the name of a step's weight begins with."""

torch_load = torch.load
"""PyTorch's own, which :func:`patch_reading` replaces."""


class UnsafeCheckpointError(ValueError):
    """A checkpoint asks for more than data when it is read."""


def _getattr(owner: type, name: str) -> Any:
    """What mmengine's logs need of ``getattr``, no more."""
    if owner is HistoryBuffer and name in ('min', 'max', 'mean', 'current'):
        return getattr(owner, name)
    raise pickle.UnpicklingError(
        f'Unsupported global: GLOBAL builtins.getattr of {owner!r}, {name!r}'
    )


# What mmengine stores beside tensors, by its name in a file.
ALLOWED = {
    'mmengine.logging.history_buffer.HistoryBuffer': HistoryBuffer,
    'mmengine.config.config.ConfigDict': ConfigDict,
    'builtins.getattr': _getattr,
    'builtins.slice': slice,
    'builtins.set': set,
    'numpy.ndarray': np.ndarray,
    'numpy.dtype': np.dtype,
    **{
        f'numpy.{core}.multiarray.{name}': value.__reduce__()[0]
        for core in ('core', '_core')  # of NumPy 1 and 2
        for name, value in (
            ('_reconstruct', np.zeros(0)),
            ('scalar', np.float64(0)),
        )
    },
    **{
        f'{kind.__module__}.{kind.__qualname__}': kind
        for kind in (type(np.dtype(code)) for code in '?bhilqBHILQefdFD')
    },
}


class _Unpickler(pickle.Unpickler):
    """For a PyTorch whose ``weights_only`` takes no further types."""

    def find_class(self, module: str, name: str) -> Any:
        """Look a name up; nothing is imported."""
        # torch.save writes the names that Python 2 had.
        full = f'{module}.{name}'.replace('__builtin__.', 'builtins.')
        known = {
            'collections.Counter': Counter,
            '_codecs.encode': codecs.encode,
            **torch._weights_only_unpickler._get_allowed_globals(),
            **ALLOWED,
        }
        if full not in known:
            raise pickle.UnpicklingError(f'Unsupported global: GLOBAL {full}')
        return known[full]


_pickle = SimpleNamespace(
    __name__='restricted',
    Unpickler=_Unpickler,
    load=lambda file, **kwargs: _Unpickler(file, **kwargs).load(),
)


def load_as_data(file: Any, map_location: Any = None, *args, **kwargs) -> Any:
    """:func:`torch.load`, without running what the file asks for.

    Tensors, containers, numbers, NumPy arrays and mmengine's records of
    scalars are read.

    Raises:
        UnsafeCheckpointError: The file names another function or class.
    """
    try:
        if not HAS_ALLOWLIST:
            return torch_load(
                file, map_location, weights_only=False, pickle_module=_pickle
            )
        with torch.serialization.safe_globals(
            [(value, name) for name, value in ALLOWED.items()]
        ):
            return torch_load(file, map_location, weights_only=True)
    except pickle.UnpicklingError as error:
        named = re.search(
            r'(?:GLOBAL|Unsupported class) `?([\w.]+)', str(error)
        )
        if named is None:
            raise
        raise UnsafeCheckpointError(
            f'{str(file)!r} is more than data: reading it would run '
            f'{named[1]}; if you trust its author, pass {TRUST_FLAG}'
        ) from error


def read_checkpoint(
    path: str, map_location: Any = 'cpu', trusted: bool = False
) -> dict:
    """Read a checkpoint of ``torch.save`` or of safetensors.

    Args:
        path (str): The file.
        map_location: See :func:`torch.load`. Defaults to 'cpu'.
        trusted (bool): Whether to run what the file asks for. Defaults to
            False, see :func:`load_as_data`.

    Returns:
        dict: What it holds, with ``state_dict`` and ``meta``, also where
        the file is only a dict of weights.

    Raises:
        UnsafeCheckpointError: It is more than data.
        ValueError: It is cut off, or is no file of PyTorch at all.
    """
    path = osp.expanduser(path)
    try:
        if path.endswith('.safetensors'):
            content = load_file(path)
        elif trusted:
            content = torch_load(path, map_location, weights_only=False)
        else:
            content = load_as_data(path, map_location)
    except (FileNotFoundError, UnsafeCheckpointError):
        raise
    except Exception as error:  # whatever a reader makes of damaged bytes
        raise ValueError(
            f'{path!r} is not a whole PyTorch checkpoint ({error}); take an '
            'earlier one'
        ) from error
    if 'state_dict' not in content:
        content = dict(state_dict=content)
    content.setdefault('meta', {})
    return content


def patch_reading(trusted: bool = False) -> None:
    """Let mmengine read checkpoints as :func:`read_checkpoint`; for tools.

    Whatever else this process gets by ``torch.load``, such as the published
    model of an address or a name, is read as data, too.

    Args:
        trusted (bool): Whether checkpoints may run code. Defaults to False.
    """

    @CheckpointLoader.register_scheme('', force=True)
    def load_from_local(filename: str, map_location: Any = 'cpu') -> dict:
        return read_checkpoint(filename, map_location, trusted)

    if not trusted:
        torch.load = load_as_data
        # onedl-mmengine's list of what is safe has an unlimited getattr.
        mmengine_checkpoint.get_torch_safe_globals = list


def load_weights(model: nn.Module, checkpoint: dict, path: str) -> None:
    """Load a checkpoint's weights; refuse those of another model.

    mmengine only warns about names that do not match, and would go on to
    evaluate random weights.

    Args:
        model (nn.Module): The model that is to be evaluated, or its wrapper.
        checkpoint (dict): What :func:`read_checkpoint` returned.
        path (str): Where it was read, for messages.

    Raises:
        ValueError: Names or shapes differ from the model's.
    """
    model = unwrap(model)
    weights = checkpoint['state_dict']
    found = OrderedDict(
        (str(name).removeprefix('module.'), value)
        for name, value in weights.items()
    )
    # By which a model's own reading renames what older versions wrote.
    found._metadata = getattr(weights, '_metadata', None)
    # The config says how pictures are normalised; old checkpoints do, too.
    for name in dict(model.named_buffers()).keys() - model.state_dict():
        found.pop(name, None)
    try:
        missing, unexpected = model.load_state_dict(found, strict=False)
    except RuntimeError as error:  # of shapes
        raise ValueError(
            f'{path!r} {OTHER_MODEL} {_first_line(error)}'
        ) from error
    if missing or unexpected:
        raise ValueError(f'{path!r} {difference(path, missing, unexpected)}')


def difference(path: str, missing: list[str], unexpected: list[str]) -> str:
    """Say of a checkpoint in what it differs from a model.

    Args:
        path (str): Where it was read.
        missing (list[str]): Names of weights that the model alone has.
        unexpected (list[str]): Names that the checkpoint alone has. At least
            one of both lists has names.
    """
    steps = steps_of_names([*missing, *unexpected])
    are_all_steps = all(map(STEP.match, [*missing, *unexpected]))
    where = f'{shorten(steps)} ({len(steps)} in all)'
    if are_all_steps and not unexpected:
        return (
            f'has no steps at {where}, and the model of this config has: '
            f'train from it with load_from={path}'
        )
    if are_all_steps and not missing:
        return (
            f'has steps at {where}, and the model of this config has none '
            f'there: give it the attention and the blocks of the training, '
            f'or take the steps out by mmstepnet.remove_steps, as '
            f'docs/classification.md shows'
        )
    sides = [
        f'{verb} {shorten(names)} ({len(names)} in all)'
        for verb, names in (
            ('It lacks', missing),
            ('The model lacks', unexpected),
        )
        if names
    ]
    return f'{OTHER_MODEL} {". ".join(sides)}'


def steps_of_names(names: Iterable[str]) -> list[str]:
    """The steps whose weights are among some names, each once, in order."""
    found = map(STEP.match, names)
    return list(dict.fromkeys(step[1] for step in found if step))


def _first_line(error: RuntimeError) -> str:
    """The first difference that PyTorch lists, and how many there are."""
    _, *lines = str(error).split('\n\t')
    if len(lines) < 2:
        return str(error)
    return f'{lines[0]} ({len(lines)} in all)'
