"""The file of one recording, ``stiffness_*.npz``."""

import json
import os
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mmstepnet.version import __version__

from .arrays import ArrayLike
from .trajectory import FIELDS, READINGS

NAMES = (*FIELDS, 'stages', 'blocks', 'excluded', 'settings')
"""Everything that a record holds."""

REQUIRED_SETTINGS = ('model', 'split', 'reading', 'dataset_size')


def save_record(path: str | Path, *, stages: ArrayLike, blocks: Sequence[str],
                excluded: Sequence[str], settings: Mapping[str, Any],
                **fields: ArrayLike) -> None:
    """Write a recording: wholly, or not at all.

    Args:
        path (str | Path): File name, ending in ``.npz``. Its folder is made.
        stages (Tensor | ndarray): Stage of each block, (L,), integers.
        blocks (Sequence[str]): Names of the L blocks.
        excluded (Sequence[str]): Names of the stage-first blocks left out.
        settings (Mapping): At least ``model``, ``split``, ``reading`` (the
            default one) and ``dataset_size``; ``epoch`` and ``iter`` where
            known. The version is added as ``mmstepnet``.
        **fields (Tensor | ndarray): What
            :attr:`~mmstepnet.stiffness.TrajectoryRecorder.record` holds, by
            the names of ``FIELDS``, each (N, L). Kept in float32.

    Raises:
        ValueError: Arrays do not fit together or hold impossible values, a
            setting is missing, or the file name ends otherwise.
    """
    path = Path(path)
    if path.suffix != '.npz':
        raise ValueError(f'a record is named *.npz, got {path}')
    record = {
        **{name: np.asarray(value, np.float32)
           for name, value in fields.items()},
        'stages': np.asarray(stages),
        'blocks': np.array(blocks, np.str_),
        'excluded': np.array(excluded, np.str_),
        'settings': {**settings, 'mmstepnet': __version__},
    }
    _check(record, 'the record to save')
    record['settings'] = np.array(json.dumps(record['settings']))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f'.{path.name}.{os.getpid()}.tmp')
    try:
        with open(temporary, 'wb') as file:
            np.savez_compressed(file, **record)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def load_record(path: str | Path) -> dict[str, Any]:
    """Read a recording.

    Args:
        path (str | Path): File that :func:`save_record` wrote.

    Returns:
        dict: Arrays by the names of ``FIELDS``, each (N, L), float32;
        ``stages`` (L,), integers; ``blocks`` (L,) and ``excluded`` (K,),
        names; ``settings``, a dict.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is damaged or is no recording; the message
            says what is wrong with it.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f'no stiffness record at {path}')
    try:
        with np.load(path, allow_pickle=False) as file:
            record = dict(file)
    except (OSError, ValueError, EOFError, AttributeError,
            NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f'{path} is damaged or no .npz file: {error}; '
                         f'record it again') from error
    missing = [name for name in NAMES if name not in record]
    if missing:
        raise ValueError(f'{path} is no stiffness record: it lacks '
                         f'{", ".join(missing)}; StiffnessHook or '
                         f'tools/analysis_tools/stiffness.py writes one')
    record = {name: record[name] for name in NAMES}
    try:
        record['settings'] = json.loads(str(record['settings']))
    except json.JSONDecodeError as error:
        raise ValueError(f'{path}: its settings are no JSON: '
                         f'{error}') from error
    _check(record, str(path))
    return record


def _check(record: Mapping[str, Any], what: str) -> None:
    settings = record['settings']
    if not isinstance(settings, dict):
        raise ValueError(f'{what}: settings must be a dict, got {settings!r}')
    missing = [name for name in REQUIRED_SETTINGS if name not in settings]
    if missing:
        raise ValueError(f'{what}: settings lack {", ".join(missing)}')
    if settings['reading'] not in READINGS:
        raise ValueError(f'{what}: reading must be one of '
                         f'{", ".join(READINGS)}, got '
                         f'{settings["reading"]!r}')
    if set(record) != set(NAMES):
        raise ValueError(f'{what}: expected {", ".join(NAMES)}, got '
                         f'{", ".join(sorted(record))}')
    shape = record[FIELDS[0]].shape
    if len(shape) != 2 or 0 in shape:
        raise ValueError(f'{what}: fields must be (N, L) with a sample and a '
                         f'block or more, got {shape}; is the data set '
                         f'empty?')
    for name in FIELDS:
        value = record[name]
        if value.shape != shape:
            raise ValueError(f'{what}: {name} has shape {value.shape}, '
                             f'expected {shape}')
        if value.dtype.kind != 'f' or not np.isfinite(value).all():
            raise ValueError(f'{what}: {name} holds NaN, infinity or no '
                             f'numbers')
        if name != 'step_mean' and (value < 0).any():
            raise ValueError(f'{what}: {name} is a norm or a ratio of norms '
                             f'and cannot be negative')
    stages, blocks = record['stages'], record['blocks']
    if stages.shape != shape[1:] or stages.dtype.kind not in 'iu':
        raise ValueError(f'{what}: stages must be {shape[1]} integers, got '
                         f'{stages!r}')
    if blocks.shape != shape[1:] or blocks.dtype.kind != 'U':
        raise ValueError(f'{what}: blocks must be {shape[1]} names, got '
                         f'{blocks!r}')
