"""Recordings of the checkpoints of one training, in order."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from .trajectories import Trajectories

ENDINGS = '.npz', '.safetensors', '.ckpt', '.pth', '.pt', '.bin', '.tar'
"""Of recordings and weights. What stands behind another dot belongs to the
name, as in ``run_0.1``."""

Trainings = Mapping[str, list[Trajectories]]
"""Checkpoints of trainings, in order, by their names."""


def find_recordings(path: str | Path) -> list[Path]:
    """The recordings that a path names, the one written last at the end.

    Args:
        path (str | Path): A recording, or a folder such as a work directory:
            all recordings below it, such as those of a training's
            validations and that of a test.

    Raises:
        FileNotFoundError: There is no such file, or no recording in the
            folder.
    """
    path = Path(path)
    if path.is_file():
        return [path]
    found = sorted(path.rglob('stiffness_*.npz'), key=_written)
    if not found:
        raise FileNotFoundError(
            f'{path} is no file and holds no recording, *.npz: '
            'python -m mmstepnet stiffness and StiffnessHook write them'
        )
    return found


def find_networks(path: str | Path) -> list[Path]:
    """The networks that a path names, for :func:`find_recordings` each.

    Args:
        path (str | Path): A recording, or a folder such as a work directory,
            which is one network; or the folder of ``python -m mmstepnet
            stiffness``, in which each recording is one.

    Returns:
        list[Path]: The path, or the recordings in it in the order in which
        they were written.
    """
    path = Path(path)
    if next(path.rglob('stiffness_*.npz'), None) is not None:
        return [path]
    return sorted(path.glob('*.npz'), key=_written) or [path]


def _written(file: Path) -> tuple[int, str]:
    """What sorts files by the time at which they were written."""
    return file.stat().st_mtime_ns, file.name


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """Names of files, with as many of their folders as tell them apart.

    Args:
        paths (Sequence[Path]): Files, of which :data:`ENDINGS` are left out,
            or folders.
    """
    parts = [_without_ending(path).parts for path in paths]
    names = [''] * len(paths)  # of the folder that one stands in
    for depth in range(1, 1 + max(map(len, parts), default=0)):
        names = ['.'.join(part[-depth:]) for part in parts]
        if len({*names}) == len({*paths}):
            break
    return names


def _without_ending(path: Path) -> Path:
    if path.suffix in ENDINGS and not path.is_dir():
        return path.with_suffix('')
    return path


def read_trainings(paths: Iterable[Path]) -> dict[str, list[Trajectories]]:
    """Trainings of which several checkpoints were recorded.

    Recordings in one folder belong to one training where model, data, blocks
    and file of steps are the same and epochs, iterations or files of weights
    differ.

    Args:
        paths (Iterable[Path]): Recordings. Those of files of weights are in
            this order, others in that of their epochs or iterations.

    Returns:
        dict[str, list[Trajectories]]: The checkpoints, by model and data.
    """
    groups: dict[tuple, dict] = defaultdict(dict)
    for path in paths:
        found = Trajectories.load(path)
        unit, at = found.checkpoint
        name = f'{found.settings["model"]}, {found.settings["split"]}'
        steps = found.settings.get('steps')
        if steps is not None:
            name += f', steps of {steps}'
        if unit:
            groups[name, path.parent, unit, found.structure][at] = found
    trainings: dict[str, list[Trajectories]] = {}
    for (name, folder, unit, _), members in groups.items():
        if len(members) > 1:
            while name in trainings:
                name += f', {folder}'
            trainings[name] = [
                members[at]
                for at in (members if unit == 'weights' else sorted(members))
            ]
    return trainings
