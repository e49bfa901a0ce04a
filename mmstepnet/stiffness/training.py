"""Recordings of the checkpoints of one training, in order."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .readings import DEFAULT_READING
from .trajectories import Trajectories


class Checkpoint(NamedTuple):
    """What is shown of a checkpoint.

    Attributes:
        step (int | str): Its epoch or iteration, else its file of weights.
        tns (float): Total neural stiffness.
        low (float): Lower end of TNS's interval over samples.
        high (float): Upper end.
        nsi (ndarray): Mean NSI of each block, (L,).
    """

    step: int | str
    tns: float
    low: float
    high: float
    nsi: np.ndarray


@dataclass(frozen=True)
class Training:
    """Stiffness over the checkpoints of one training.

    Attributes:
        unit (str): What counts the steps: ``'epoch'``, ``'iter'`` or
            ``'weights'``.
        reading (str): Reading of NSI.
        blocks (list[str]): Names of the L blocks.
        checkpoints (list[Checkpoint]): In order.
    """

    unit: str
    reading: str
    blocks: list[str]
    checkpoints: list[Checkpoint]


def find_recordings(path: str | Path) -> list[Path]:
    """The recordings that a path names, the one written last at the end.

    Args:
        path (str | Path): A recording, or a folder such as a work directory:
            the recordings beside the one that was written last below it.

    Raises:
        FileNotFoundError: There is no such file or folder, or no recording
            in it.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f'run {path} does not exist; expected a '
                                'work directory or a stiffness_*.npz file')
    if path.is_file():
        return [path]
    found = sorted(
        path.rglob('stiffness_*.npz'),
        key=lambda file: (file.stat().st_mtime_ns, file.name))
    if not found:
        raise FileNotFoundError(
            f'no stiffness_*.npz in {path} or below; write one with '
            "custom_hooks=[dict(type='mmstepnet.StiffnessHook')], or name "
            'the .npz files that python -m mmstepnet stiffness wrote')
    return [file for file in found if file.parent == found[-1].parent]


def distinct_names(paths: Sequence[Path], between: str = '.') -> list[str]:
    """Names of files, with as many of their folders as tell them apart.

    Args:
        paths (Sequence[Path]): Files, whose endings are left out, or folders.
        between (str): What stands between the parts. Defaults to ``'.'``.
    """
    parts = [(path if path.is_dir() else path.with_suffix('')).parts
             for path in paths]
    depth = 1
    while depth < max(map(len, parts), default=0) and len(
            {part[-depth:] for part in parts}) < len(set(paths)):
        depth += 1
    return [between.join(part[-depth:]) for part in parts]


def read_trainings(paths: Iterable[Path],
                   reading: str = DEFAULT_READING) -> dict[str, Training]:
    """Trainings of which several checkpoints were recorded.

    Recordings in one folder belong to one training where model, data and
    blocks are the same and epochs, iterations or files of weights differ.

    Args:
        paths (Iterable[Path]): Recordings. Checkpoints without a number are
            in this order.
        reading (str): Reading of NSI. Defaults to ``'adaptive'``.

    Returns:
        dict[str, Training]: By model and data.
    """
    groups: dict[tuple, dict] = defaultdict(dict)
    for path in paths:
        found = Trajectories.load(path)
        settings = found.settings
        unit = next((unit for unit in ('epoch', 'iter', 'weights')
                     if unit in settings), None)
        if unit is not None:
            key = (path.parent, settings['model'], settings['split'], unit,
                   *found.structure)
            groups[key][settings[unit]] = found.blocks, Checkpoint(
                settings[unit], found.tns(reading),
                *found.tns_interval(reading), found.nsi(reading).mean(0))
    trainings: dict[str, Training] = {}
    for (folder, model, split, unit, *_), members in groups.items():
        if len(members) < 2:
            continue
        name = f'{model}, {split}'
        while name in trainings:
            name += f', {folder}'
        order = members if unit == 'weights' else sorted(members)
        blocks, checkpoints = zip(*(members[step] for step in order))
        trainings[name] = Training(
            unit, reading, blocks[0], list(checkpoints))
    return trainings
