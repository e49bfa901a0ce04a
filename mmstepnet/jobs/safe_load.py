"""Checkpoints are data: reading them runs nothing that is in them."""

import json
import pickle
import re
from collections import Counter, OrderedDict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, BinaryIO
from zipfile import ZipFile, is_zipfile

import numpy as np
import torch
from mmengine.config import ConfigDict
from mmengine.logging import HistoryBuffer
from mmengine.optim.scheduler.param_scheduler import OneCycleParamScheduler

TRUST_FLAG = '--trust-checkpoint'

HAS_ALLOWLIST = hasattr(torch.serialization, 'safe_globals')
"""Whether ``weights_only`` can be told of further types: PyTorch 2.5."""


class UnsafeCheckpointError(ValueError):
    """A checkpoint asks for more than data when it is read."""


class _Annealing:
    """Stands for OneCycleParamScheduler, whose state names a function."""

    _annealing_cos = OneCycleParamScheduler._annealing_cos
    _annealing_linear = OneCycleParamScheduler._annealing_linear


ATTRIBUTES = {
    HistoryBuffer: ('min', 'max', 'mean', 'current'),
    _Annealing: ('_annealing_cos', '_annealing_linear'),
}


def _attribute(owner: type, name: str) -> Callable:
    """What mmengine's logs and schedules need of ``getattr``, no more."""
    if name in ATTRIBUTES.get(owner, ()):
        return getattr(owner, name)
    raise pickle.UnpicklingError(
        f'Unsupported global: GLOBAL builtins.getattr of {owner!r}, {name!r}')


def _encode(text: str, encoding: str) -> bytes:
    """How torch.save writes bytes."""
    if encoding != 'latin1':
        raise pickle.UnpicklingError(
            f'Unsupported global: GLOBAL _codecs.encode to {encoding!r}')
    return text.encode(encoding)


def _allowlist() -> dict[str, Any]:
    """Names in a file to objects: what mmengine stores beside tensors."""
    # Where NumPy has these depends on its version.
    numpy_functions = {
        '_reconstruct': np.zeros(0).__reduce__()[0],
        'scalar': np.float64(0).__reduce__()[0]
    }
    allowed = {
        'mmengine.logging.history_buffer.HistoryBuffer': HistoryBuffer,
        'mmengine.optim.scheduler.param_scheduler.OneCycleParamScheduler':
        _Annealing,
        # In a data set's metainfo, of a config.
        'mmengine.config.config.ConfigDict': ConfigDict,
        'builtins.getattr': _attribute,
        'builtins.slice': slice,
        'builtins.set': set,
        'numpy.ndarray': np.ndarray,
        'numpy.dtype': np.dtype,
    }
    for package in ('numpy._core', 'numpy.core'):  # numpy 2 and before
        for name, function in numpy_functions.items():
            allowed[f'{package}.multiarray.{name}'] = function
    for kind in '?bhilqBHILQefdFD':
        # A class of its own from numpy 1.25 on.
        dtype = type(np.dtype(kind))
        allowed[f'{dtype.__module__}.{dtype.__qualname__}'] = dtype
    return allowed


class _RestrictedUnpickler(pickle.Unpickler):
    """For a PyTorch whose ``weights_only`` takes no further types."""

    tensors = {
        f'{module}.{name}': getattr(owner, name)
        for module, owner, names in (
            ('torch._utils', torch._utils, (
                '_rebuild_tensor', '_rebuild_tensor_v2',
                '_rebuild_parameter')),
            ('torch', torch, (
                'Size', 'device', 'float16', 'bfloat16', 'float32', 'float64',
                'int8', 'int16', 'int32', 'int64', 'uint8', 'bool')),
        ) for name in names
    }

    def find_class(self, module: str, name: str) -> Any:
        """Look a name up in the allowlist; nothing is imported."""
        # torch.save writes the names that Python 2 had.
        module = 'builtins' if module == '__builtin__' else module
        full = f'{module}.{name}'
        allowed = {
            'collections.Counter': Counter,
            'collections.OrderedDict': OrderedDict,
            '_codecs.encode': _encode,
            **self.tensors,
            **_allowlist()
        }
        if full not in allowed:
            raise pickle.UnpicklingError(f'Unsupported global: GLOBAL {full}')
        return allowed[full]


_restricted_pickle = SimpleNamespace(
    __name__='restricted_pickle', Unpickler=_RestrictedUnpickler,
    UnpicklingError=pickle.UnpicklingError,
    load=lambda file, **kwargs: _RestrictedUnpickler(file, **kwargs).load())


def load_file(path: str,
              map_location: Any = 'cpu',
              trusted: bool = False) -> Any:
    """Read a file of ``torch.save`` or of safetensors, opened once.

    The parts of a zip file are compared with their checksums, which
    ``torch.load`` does not do.

    Args:
        path (str): The file; ``*.safetensors`` gives a ``state_dict``, and
            as ``meta`` what its metadata hold in JSON.
        map_location: See :func:`torch.load`. Defaults to 'cpu'.
        trusted (bool): Whether to run what the file asks for. Defaults to
            False: nothing in it is run. Tensors, containers, numbers, NumPy
            arrays and mmengine's records of scalars are read; a name of any
            other function or class ends it.

    Returns:
        What it holds.

    Raises:
        UnsafeCheckpointError: It names other functions or classes.
        ValueError: A checksum differs.
    """
    if str(path).endswith('.safetensors'):
        return _load_safetensors(path, map_location)
    with open(path, 'rb') as file:
        if is_zipfile(file):
            damaged = ZipFile(file).testzip()
            if damaged is not None:
                raise ValueError(f'the checksum of {damaged} differs')
        file.seek(0)
        return _load(file, path, trusted, map_location=map_location)


def peek(path: str, trusted: bool = False) -> Any:
    """Read a file of ``torch.save``; a zip file's tensors stay on the disk.

    See :func:`load_file`; no checksums are compared.
    """
    return _load(path, path, trusted, map_location='cpu',
                 mmap=is_zipfile(path) or None)


def _load(file: BinaryIO | str, path: str, trusted: bool, **kwargs) -> Any:
    if trusted:
        return torch.load(file, weights_only=False, **kwargs)
    try:
        return _load_restricted(file, **kwargs)
    except pickle.UnpicklingError as error:
        named = re.search(
            r'(?:GLOBAL|Unsupported class) `?([\w.]+)', str(error))
        if named is None:
            raise
        raise UnsafeCheckpointError(
            f'{path!r} is more than data: reading it would call or build '
            f'{named[1]}. mmstepnet reads tensors, arrays and the records of '
            'mmengine alone. If you know who wrote the file and trust them, '
            f'pass {TRUST_FLAG}, which runs what it asks for') from error


def _load_restricted(file: BinaryIO | str, **kwargs) -> Any:
    if not HAS_ALLOWLIST:
        return torch.load(file, weights_only=False,
                          pickle_module=_restricted_pickle, **kwargs)
    allowed = [(value, name) for name, value in _allowlist().items()]
    with torch.serialization.safe_globals(allowed):
        return torch.load(file, weights_only=True, **kwargs)


def _load_safetensors(path: str, map_location: Any) -> dict:
    from safetensors import safe_open

    # Where torch.load takes functions and None, this takes devices alone.
    device = (map_location if isinstance(map_location, str | torch.device)
              else 'cpu')
    with safe_open(path, 'pt', device=str(device)) as file:
        weights = OrderedDict((key, file.get_tensor(key))
                              for key in file.keys())
        meta = file.metadata() or {}
    return dict(meta={key: _from_json(text) for key, text in meta.items()},
                state_dict=weights)


def _from_json(text: str) -> Any:
    """What metadata of ours hold; those of others are text."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
