"""Measured runs from their work directories: recordings, and accuracy."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from mmstepnet.checks import check_choice
from mmstepnet.figures.runs import Accuracy, Run
from mmstepnet.stiffness import (
    DEFAULT_READING,
    READINGS,
    Trajectories,
    find_recordings,
)
from mmstepnet.stiffness.training import distinct_names

from .metric_log import (
    KNOWN_METRICS,
    TEST,
    log_files,
    logged_metric,
    logged_names,
)


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
            accuracy, one of which more is better. Default: the first of
            :data:`KNOWN_METRICS` that a run has.

    Raises:
        FileNotFoundError: A path does not exist, or holds no record.
        ValueError: A record is damaged, the same is named twice, the number
            of labels is not that of paths, or no run has the metric.
    """
    if not paths:
        raise ValueError('no run to show; give work directories or '
                         'stiffness_*.npz files')
    check_choice('reading', reading, READINGS)
    records = [find_recordings(path)[-1] for path in paths]
    twice = [p for p, n in Counter(p.resolve() for p in records).items()
             if n > 1]
    if twice:
        raise ValueError(f'{twice[0]} is named by more than one run')
    if labels is None:
        models = distinct_names(
            [Path(path).resolve() for path in paths], '/')
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
        trajectories = Trajectories.load(path)
        runs.append(
            Run(label, model, trajectories, reading,
                find_accuracy(path, trajectories.settings, metric),
                str(path)))
    if metric is not None and all(run.accuracy is None for run in runs):
        known = set().union(
            *(_metric_names(path, run) for path, run in zip(records, runs)))
        raise ValueError(f'no run has the metric {metric!r}; their logs have '
                         f'{", ".join(sorted(known)) or "none"}')
    return runs


def find_accuracy(path: Path,
                  settings: Mapping,
                  metric: str | None = None) -> Accuracy | None:
    """The accuracy of the weights that a record was measured with.

    First what was evaluated in the same pass as the record; then the logs of
    the work directory: the test for a record of the test split, else the
    validation after the record's epoch (or iteration), else the last one.

    Args:
        path (Path): The record.
        settings (Mapping): Its settings.
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


def _work_dir(record: Path) -> Path | None:
    """The nearest directory above a record that holds logs."""
    return next((d for d in record.resolve().parents[:4] if log_files(d)),
                None)


def _metric_names(record: Path, run: Run) -> set[str]:
    work_dir = _work_dir(record)
    return {*run.trajectories.settings.get('metrics', {}),
            *(logged_names(work_dir) if work_dir else ())}
