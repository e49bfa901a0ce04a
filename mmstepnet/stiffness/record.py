"""The file of one recording, ``stiffness_*.npz``."""

import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mmstepnet.version import __version__

from .arrays import ArrayLike
from .trajectory import FIELDS, READINGS

REQUIRED_SETTINGS = ('model', 'split', 'reading', 'dataset_size')


@dataclass
class StiffnessRecord:
    """What was recorded of N samples at L blocks.

    Attributes:
        fields (dict[str, ndarray]): By the names of ``FIELDS``, each (N, L),
            float32.
        stages (ndarray): Stage of each block, (L,), integers.
        blocks (list[str]): Names of the blocks, L.
        excluded (list[str]): Names of the stage-first blocks left out.
        settings (dict): At least ``model``, ``split``, ``reading`` (the
            default one), ``dataset_size`` and ``mmstepnet`` (version);
            ``epoch`` and ``iter`` where known.
    """

    fields: dict[str, np.ndarray]
    stages: np.ndarray
    blocks: list[str]
    excluded: list[str]
    settings: dict[str, Any]

    @property
    def nsi(self) -> np.ndarray:
        """NSI in the default reading, (N, L)."""
        return self.fields[self.settings['reading']]


def save_record(path: str | Path, fields: Mapping[str, ArrayLike],
                stages: ArrayLike, blocks: Sequence[str],
                excluded: Sequence[str], settings: Mapping[str, Any]) -> None:
    """Write a recording: wholly, or not at all.

    Args:
        path (str | Path): File name, ending in ``.npz``. Its folder is made.
        fields (Mapping): By the names of ``FIELDS``, each (N, L).
        stages (Tensor | ndarray): Stage of each block, (L,).
        blocks (Sequence[str]): Names of the blocks, L.
        excluded (Sequence[str]): Names of the blocks left out.
        settings (Mapping): See :class:`StiffnessRecord`; the version is
            added.

    Raises:
        ValueError: Arrays do not fit together or hold impossible values, a
            setting is missing, or the file name ends otherwise.
    """
    path = Path(path)
    if path.suffix != '.npz':
        raise ValueError(f'a record is named *.npz, got {path}')
    record = StiffnessRecord(
        fields={k: np.asarray(v, np.float32)
                for k, v in fields.items()},
        stages=np.asarray(stages, np.int64),
        blocks=list(blocks),
        excluded=list(excluded),
        settings={**settings, 'mmstepnet': __version__})
    _check(record, 'the record to save')
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f'.{path.name}.{os.getpid()}.tmp')
    try:
        with open(temporary, 'wb') as file:
            np.savez_compressed(
                file,
                allow_pickle=False,
                **record.fields,
                stages=record.stages,
                blocks=np.array(record.blocks, np.str_),
                excluded=np.array(record.excluded, np.str_),
                settings=np.array(json.dumps(record.settings)))
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def load_record(path: str | Path) -> StiffnessRecord:
    """Read a recording.

    Args:
        path (str | Path): File that :func:`save_record` wrote.

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
            arrays = dict(file)
    except (OSError, ValueError, EOFError, KeyError, NotImplementedError,
            zipfile.BadZipFile, zipfile.zlib.error) as error:
        raise ValueError(f'{path} is damaged or no .npz file: {error}; '
                         f'record it again') from error
    missing = [
        name for name in (*FIELDS, 'stages', 'blocks', 'excluded', 'settings')
        if name not in arrays
    ]
    if missing:
        raise ValueError(f'{path} is no stiffness record: it lacks '
                         f'{", ".join(missing)}; StiffnessHook or '
                         f'tools/analysis_tools/stiffness.py writes one')
    try:
        settings = json.loads(str(arrays['settings']))
    except json.JSONDecodeError as error:
        raise ValueError(f'{path}: its settings are no JSON: '
                         f'{error}') from error
    record = StiffnessRecord(
        fields={name: arrays[name]
                for name in FIELDS},
        stages=arrays['stages'],
        blocks=arrays['blocks'].reshape(-1).tolist(),
        excluded=arrays['excluded'].reshape(-1).tolist(),
        settings=settings)
    _check(record, str(path))
    return record


def _check(record: StiffnessRecord, what: str) -> None:
    settings = record.settings
    if not isinstance(settings, dict):
        raise ValueError(f'{what}: settings must be a dict, got {settings!r}')
    missing = [name for name in REQUIRED_SETTINGS if name not in settings]
    if missing:
        raise ValueError(f'{what}: settings lack {", ".join(missing)}')
    if settings['reading'] not in READINGS:
        raise ValueError(f'{what}: reading must be one of '
                         f'{", ".join(READINGS)}, got '
                         f'{settings["reading"]!r}')
    if set(record.fields) != set(FIELDS):
        raise ValueError(f'{what}: expected the fields {", ".join(FIELDS)}, '
                         f'got {", ".join(sorted(record.fields))}')
    shape = record.fields[FIELDS[0]].shape
    if len(shape) != 2 or 0 in shape:
        raise ValueError(f'{what}: fields must be (N, L) with a sample and a '
                         f'block or more, got {shape}; is the data set '
                         f'empty?')
    for name, value in record.fields.items():
        if value.shape != shape:
            raise ValueError(f'{what}: {name} has shape {value.shape}, '
                             f'expected {shape}')
        if value.dtype.kind != 'f' or not np.isfinite(value).all():
            raise ValueError(f'{what}: {name} holds NaN, infinity or no '
                             f'numbers')
        if name != 'step_mean' and (value < 0).any():
            raise ValueError(f'{what}: {name} is a norm or a ratio of norms '
                             f'and cannot be negative')
    if record.stages.shape != shape[1:] or record.stages.dtype.kind != 'i':
        raise ValueError(f'{what}: stages must be {shape[1]} integers, got '
                         f'{record.stages!r}')
    if len(record.blocks) != shape[1]:
        raise ValueError(f'{what}: {len(record.blocks)} block names for '
                         f'{shape[1]} blocks')
