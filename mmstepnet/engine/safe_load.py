"""Checkpoints are data: reading them runs nothing that is in them."""

import os
import os.path as osp
import pickle
import re
from collections import Counter, OrderedDict
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlparse

import numpy as np
import torch
from mmengine.dist import barrier
from mmengine.logging import HistoryBuffer
from mmengine.optim.scheduler.param_scheduler import OneCycleParamScheduler
from mmengine.runner import CheckpointLoader
from mmengine.runner.checkpoint import (
    _process_mmcls_checkpoint,
    get_deprecated_model_names,
    get_external_models,
    get_mmcls_models,
    get_torchvision_models,
)

TRUST_FLAG = '--trust-checkpoint'

# By the name of a scheme: mmengine's own index of names and addresses.
INDICES = {
    'torchvision': get_torchvision_models,
    'modelzoo': get_torchvision_models,
    'open-mmlab': get_external_models,
    'openmmlab': get_external_models,
    'mmcls': get_mmcls_models,
}

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
    __name__='restricted_pickle',
    Unpickler=_RestrictedUnpickler,
    UnpicklingError=pickle.UnpicklingError,
    load=lambda file, **kwargs: _RestrictedUnpickler(file, **kwargs).load())


def load_data(path: str, map_location: Any = 'cpu',
              mmap: bool | None = None) -> Any:
    """Read a file of ``torch.save`` without running anything in it.

    Tensors, containers, numbers, NumPy arrays and mmengine's records of
    scalars are read; a name of any other function or class ends it.

    Args:
        path (str): The file.
        map_location: See :func:`torch.load`. Defaults to 'cpu'.
        mmap (bool, optional): See there. Defaults to None.

    Returns:
        What it holds.

    Raises:
        UnsafeCheckpointError: It names other functions or classes.
    """
    if HAS_ALLOWLIST:
        allowed = [(value, name) for name, value in _allowlist().items()]
        context = torch.serialization.safe_globals(allowed)
        kwargs = dict(weights_only=True)
    else:
        context = nullcontext()
        kwargs = dict(weights_only=False, pickle_module=_restricted_pickle)
    try:
        with context:
            return torch.load(
                path, map_location=map_location, mmap=mmap, **kwargs)
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


def guard_checkpoints() -> None:
    """Make mmengine read every checkpoint of this process as data.

    Wherever it comes from: ``load_from``, resumption, ``init_cfg`` of
    pretrained weights; local files, web addresses and the hosts' names of
    published models. Addresses of other kinds are refused.
    """
    register = CheckpointLoader.register_scheme
    register('', _load_local, force=True)
    register(('http://', 'https://'), _load_url, force=True)
    register(
        tuple(f'{scheme}://' for scheme in INDICES), _load_named, force=True)
    register(
        tuple(prefix for prefix in CheckpointLoader._schemes
              if prefix and prefix.rstrip(':/') not in (
                  'http', 'https', *INDICES)),
        _refuse,
        force=True)


def _load_local(filename: str, map_location: Any = 'cpu') -> Any:
    filename = osp.expanduser(filename)
    if not osp.isfile(filename):
        raise FileNotFoundError(f'checkpoint {filename!r} does not exist')
    return load_data(filename, map_location)


def _load_url(filename: str, map_location: Any = 'cpu') -> Any:
    folder = osp.join(torch.hub.get_dir(), 'checkpoints')
    path = osp.join(folder, osp.basename(urlparse(filename).path))
    # One process of a node fetches, all read.
    if int(os.environ.get('LOCAL_RANK', 0)) == 0 and not osp.isfile(path):
        os.makedirs(folder, exist_ok=True)
        torch.hub.download_url_to_file(filename, path)
    barrier()
    return load_data(path, map_location)


def _load_named(filename: str, map_location: Any = 'cpu') -> Any:
    scheme, name = filename.split('://', 1)
    urls = INDICES[scheme]()
    if INDICES[scheme] is get_external_models:
        name = get_deprecated_model_names().get(name, name)
    if name not in urls:
        raise ValueError(f'{scheme}:// has no model {name!r}; it has '
                         f'{", ".join(sorted(urls))}')
    checkpoint = _load_url(urls[name], map_location)
    # Those are classifiers, of which a config wants the backbone.
    return (_process_mmcls_checkpoint(checkpoint)
            if scheme == 'mmcls' else checkpoint)


def _refuse(filename: str, map_location: Any = 'cpu') -> Any:
    raise UnsafeCheckpointError(
        f'{filename!r}: from there mmengine reads pickles that can run code. '
        f'Fetch the file and name it by its path, or pass {TRUST_FLAG}')
