"""What a figure or report shows of a run: its record and its accuracy."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from mmstepnet.engine.metric_log import (
    KNOWN_METRICS,
    TEST,
    log_files,
    logged_metric,
    logged_names,
)
from mmstepnet.stiffness import (
    total_neural_stiffness,
    total_stiffness_proportion,
)
from mmstepnet.stiffness.record import load_record
from mmstepnet.stiffness.trajectory import DEFAULT_READING, READINGS

READING_TEXTS = {
    'adaptive': "step Δt is the block's attention value: ‖f‖ / ‖x_t‖",
    'unit': 'step Δt = 1: ‖f ⊗ Δt‖ / ‖x_t‖',
    'returned': 'what the block returns, activation included: '
                '‖out − x_t‖ / ‖x_t‖',
}
"""What the readings of NSI mean."""


@dataclass(frozen=True)
class Accuracy:
    """A run's accuracy, and what it is.

    Attributes:
        metric (str): Name of the metric, such as ``'accuracy/top1'``.
        value (float): Its value for the weights that were measured, or the
            next best thing that ``where`` tells.
        where (str): Which evaluation it is from.
        split (str): The data of that evaluation, such as ``'val'``.
        highest (float, optional): Highest value of all evaluations in
            training, chosen with knowledge of the evaluation set.
        highest_step (int, optional): Its epoch or iteration.
    """

    metric: str
    value: float
    where: str
    split: str
    highest: float | None = None
    highest_step: int | None = None


@dataclass(frozen=True)
class Run:
    """One measured run.

    Attributes:
        label (str): Name in the figures, unique in a report.
        model (str): Runs of the same name are seeds of one model.
        path (Path): Its record.
        reading (str): Reading of NSI that ``nsi`` holds.
        nsi (ndarray): NSI, (N, L).
        step (ndarray): Mean attention value, (N, L); 1 in plain blocks.
        stages (ndarray): Stage of each block, (L,).
        blocks (list[str]): Names of the L blocks.
        excluded (list[str]): Blocks left out, the first of each stage.
        settings (dict): How it was recorded.
        accuracy (Accuracy, optional): None where no log has one.
    """

    label: str
    model: str
    path: Path
    reading: str
    nsi: np.ndarray
    step: np.ndarray
    stages: np.ndarray
    blocks: list[str]
    excluded: list[str]
    settings: dict
    accuracy: Accuracy | None = None

    @cached_property
    def tns(self) -> float:
        """Total neural stiffness, the mean over samples."""
        return float(total_neural_stiffness(self.nsi, self.stages).mean())

    @cached_property
    def proportion(self) -> float:
        """Integral of the stiffness proportion, the mean over samples."""
        return float(
            total_stiffness_proportion(self.nsi, self.stages).mean())

    @cached_property
    def stage_nsi(self) -> list[float]:
        """Mean NSI of each stage, in the order of the blocks."""
        return [
            float(self.nsi[:, self.stages == stage].mean(dtype=np.float64))
            for stage in dict.fromkeys(self.stages.tolist())
        ]

    @cached_property
    def stage_names(self) -> dict[int, str]:
        """Name of each stage in the network, in the order of the blocks.

        A stage of one block is left out and counts nevertheless.
        """
        firsts = [name.rpartition('.')[0] for name in self.excluded]
        containers = list(dict.fromkeys(firsts))
        names = {}
        for block, stage in zip(self.blocks, self.stages.tolist()):
            inside = [c for c in containers if block.startswith(f'{c}.')]
            if not inside and '' not in containers:
                # Blocks were chosen one by one, without their stages' first.
                return {s: f'stage {n}' for n, s in enumerate(
                    dict.fromkeys(self.stages.tolist()), 1)}
            container = max(inside, key=len, default='')
            names.setdefault(
                stage, f'stage {containers.index(container) + 1}')
        return names

    @property
    def comparison(self) -> str:
        """Metric and data: runs that differ in it are not ranked."""
        metric, split = self.accuracy.metric, self.accuracy.split
        measured = self.settings.get('split')
        if split == measured:
            return f'{metric}, {split} split'
        return f'{metric}, {split} split; TNS, {measured} split'

    @property
    def structure(self) -> tuple:
        """Equal for runs whose blocks can be laid over each other."""
        return (*self.blocks, *self.stages.tolist())

    @property
    def single_block_stages(self) -> bool:
        """Whether no stage can be stiff, so that TNS is 0 by definition."""
        return max(Counter(self.stages.tolist()).values()) == 1


def load_runs(paths: Sequence[str | Path],
              labels: Sequence[str] | None = None,
              reading: str = DEFAULT_READING,
              metric: str | None = None) -> list[Run]:
    """Read runs for a report.

    Args:
        paths (Sequence[str | Path]): Records, or directories that hold some,
            such as work directories: the one written last counts.
        labels (Sequence[str], optional): A name for each run. Runs with the
            same name are seeds of one model. Default: the directory's or
            file's name.
        reading (str): Reading of NSI. Defaults to 'adaptive'.
        metric (str, optional): Metric in the runs' logs that is their
            accuracy. Default: the first of :data:`KNOWN_METRICS` that a run
            has.

    Raises:
        FileNotFoundError: A path does not exist, or holds no record.
        ValueError: A record is damaged, the same is named twice, the number
            of labels is not that of paths, or no run has the metric.
    """
    if not paths:
        raise ValueError('no run to show; give work directories or '
                         'stiffness_*.npz files')
    if reading not in READINGS:
        raise ValueError(f'reading must be one of '
                         f'{", ".join(READINGS)}, got {reading!r}')
    records = [find_record(path) for path in paths]
    twice = [p for p, n in Counter(p.resolve() for p in records).items()
             if n > 1]
    if twice:
        raise ValueError(f'{twice[0]} is named by more than one run')
    if labels is None:
        models = _distinct_names([Path(path) for path in paths])
    elif len(labels) != len(paths):
        raise ValueError(f'{len(paths)} runs need as many labels, got '
                         f'{len(labels)}')
    else:
        models = list(labels)
    numbered, seen = Counter(models), Counter()
    runs = []
    for path, model in zip(records, models):
        seen[model] += 1
        label = f'{model} ({seen[model]})' if numbered[model] > 1 else model
        runs.append(load_run(path, label, model, reading, metric))
    if metric is not None and all(run.accuracy is None for run in runs):
        known = set().union(*(_metric_names(run) for run in runs))
        raise ValueError(f'no run has the metric {metric!r}; their logs have '
                         f'{", ".join(sorted(known)) or "none"}')
    return runs


def load_run(path: Path,
             label: str,
             model: str | None = None,
             reading: str = DEFAULT_READING,
             metric: str | None = None) -> Run:
    """Read one record and the accuracy that belongs to it.

    Args:
        path (Path): The record.
        label (str): Name in the figures.
        model (str, optional): See :class:`Run`. Defaults to ``label``.
        reading (str): See :func:`load_runs`.
        metric (str, optional): See :func:`load_runs`.
    """
    record = load_record(path)
    return Run(
        label=label,
        model=model or label,
        path=path,
        reading=reading,
        nsi=record[reading],
        step=record['step_mean'],
        stages=record['stages'],
        blocks=record['blocks'].tolist(),
        excluded=record['excluded'].tolist(),
        settings=record['settings'],
        accuracy=find_accuracy(path, record['settings'], metric))


def find_record(path: str | Path) -> Path:
    """The record that a path names, or the last written below it."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f'run {path} does not exist; expected a '
                                'work directory or a stiffness_*.npz file')
    if path.is_file():
        return path
    records = sorted(
        path.rglob('stiffness_*.npz'),
        key=lambda file: (file.stat().st_mtime_ns, file.name))
    if not records:
        raise FileNotFoundError(
            f'no stiffness_*.npz in {path} or below; write one with '
            "custom_hooks=[dict(type='mmstepnet.StiffnessHook')] or with "
            'tools/analysis_tools/stiffness.py')
    return records[-1]


def find_accuracy(path: Path,
                  settings: dict,
                  metric: str | None = None) -> Accuracy | None:
    """The accuracy of the weights that a record was measured with.

    First what was evaluated in the same pass as the record; then the logs of
    the work directory: the test for a record of the test split, else the
    validation after the record's epoch (or iteration), else the last one.

    Args:
        path (Path): The record.
        settings (dict): Its settings.
        metric (str, optional): Name of the metric. Default: the first of
            :data:`KNOWN_METRICS` that is there.
    """
    work_dir = _work_dir(path)
    for name in [metric] if metric else KNOWN_METRICS:
        logged = logged_metric(work_dir, name) if work_dir else {}
        test = logged.pop(TEST, None)
        own = next((settings[key] for key in ('epoch', 'iter')
                    if settings.get(key) in logged), None)
        last = max(logged, default=None)
        if name in settings.get('metrics', {}):
            value, where = settings['metrics'][name], 'measured with the NSI'
            split = settings.get('split')
        elif settings.get('split') == 'test' and test is not None:
            value, where, split = test, 'test', 'test'
        elif own is not None:
            value, where, split = logged[own], f'validation at {own}', 'val'
        elif last is not None:
            value, where = logged[last], f'last validation, at {last}'
            split = 'val'
        else:
            continue
        best = max(logged, key=logged.get, default=None)
        return Accuracy(name, value, where, split, logged.get(best), best)
    return None


def same_blocks(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Sets of runs whose blocks can be laid over each other.

    Returns:
        dict[str, list[Run]]: First every model with several runs (seeds),
        then all runs with the same blocks; the key tells which.
    """
    sets = {}
    for kind in ('model', 'structure'):
        groups = {}
        for run in runs:
            name = run.model if kind == 'model' else ''
            groups.setdefault((name, run.structure), []).append(run)
        for (name, _), members in groups.items():
            if kind == 'model' and len(members) == 1:
                continue
            title = (f'{name}, {_count(members)}' if name else
                     f'all runs with these {len(members[0].blocks)} blocks '
                     f'({_count(members)})')
            while title in sets:
                title += ', other blocks'
            sets[title] = members
    return sets


def _count(runs: list[Run]) -> str:
    return f'{len(runs)} run' + ('s' if len(runs) > 1 else '')


def _work_dir(record: Path) -> Path | None:
    """The nearest directory above a record that holds logs."""
    return next((d for d in record.resolve().parents[:4] if log_files(d)),
                None)


def _metric_names(run: Run) -> set[str]:
    work_dir = _work_dir(run.path)
    return {*run.settings.get('metrics', {}),
            *(logged_names(work_dir) if work_dir else ())}


def _distinct_names(paths: list[Path]) -> list[str]:
    """The shortest ends of the paths that tell them apart."""
    parts = [path.resolve().with_suffix('').parts for path in paths]
    names = ['/'.join(p[-1:]) for p in parts]
    depth = 1
    while len(set(names)) < len(names) and depth < max(map(len, parts)):
        depth += 1
        names = ['/'.join(p[-depth:]) for p in parts]
    return names
