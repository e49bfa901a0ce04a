"""A run's accuracy, from the logs that mmengine leaves in its directory."""

import json
import math
from pathlib import Path
from statistics import fmean

TEST = 'test'
"""Step under which :func:`logged_metric` files the result of a test run."""


def logged_metric(
    work_dir: str | Path, name: str, finite_only: bool = False
) -> dict[int | str, float]:
    """Read one metric from all logs of a work directory.

    Validation results stand in ``TIMESTAMP/vis_data/*.json``, one JSON object
    a line with the epoch (or iteration) as ``step``, those of a test run in
    ``TIMESTAMP/TIMESTAMP.json``. Where a resumed run repeats a step the later
    start counts.

    Args:
        work_dir (str | Path): Work directory of an mmengine runner.
        name (str): Key of the metric, such as ``'accuracy/top1'``.
        finite_only (bool): Leave out what is no finite number, such as the
            perplexity of a model that hardly began. Defaults to False.

    Returns:
        dict: Value at each step; the step is :data:`TEST` for a test run.
        Empty where no log has the metric.

    Raises:
        ValueError: A log holds the metric but no finite number for it.
    """
    values = {}
    for path in log_files(work_dir):
        for entry in _entries(path):
            if name in entry:
                values[entry.get('step', TEST)] = path, entry[name]
    return {
        step: _finite(path, name, value)
        for step, (path, value) in values.items()
        if not finite_only or _is_finite(value)
    }


def logged_losses(
    work_dir: str | Path, name: str = 'loss'
) -> dict[int, float]:
    """Read the training loss of each epoch.

    Where it is logged several times in an epoch, the mean counts. Where a
    resumed run repeats iterations the later start counts, also for all that
    an earlier one had logged beyond them.

    Args:
        work_dir (str | Path): Work directory of an mmengine runner.
        name (str): Key of the loss. Defaults to ``'loss'``.

    Raises:
        ValueError: A log holds the loss but no finite number for it.
    """
    logged = {}
    for path in log_files(work_dir):
        entries = [e for e in _entries(path) if name in e and 'epoch' in e]
        if entries:
            first = min(e['step'] for e in entries)
            logged = {s: found for s, found in logged.items() if s < first}
        for entry in entries:
            value = _finite(path, name, entry[name])
            logged[entry['step']] = entry['epoch'], value
    losses = {}
    for epoch, value in logged.values():
        losses.setdefault(epoch, []).append(value)
    return {epoch: fmean(values) for epoch, values in losses.items()}


def _finite(path: Path, name: str, value: object) -> float:
    if not _is_finite(value):
        raise ValueError(f'{path}: {name} is {value!r}, not a finite number')
    return value


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def log_files(work_dir: str | Path) -> list[Path]:
    """The JSON logs of a work directory, oldest start first."""
    work_dir = Path(work_dir)
    return sorted(
        (
            path
            for start in work_dir.iterdir()
            if start.is_dir()
            for path in (
                *start.glob('vis_data/*.json'),
                *start.glob(f'{start.name}.json'),
            )
        ),
        key=lambda path: path.relative_to(work_dir).parts[0],
    )


def _entries(path: Path) -> list[dict]:
    """JSON objects of a log; a line cut short by a killed run is left out."""
    entries = []
    for line in path.read_text().splitlines():
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(entry, dict):
            entries.append(entry)
    return entries
