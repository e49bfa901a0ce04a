"""What warm_start.py leaves, ``warm_start/CONFIG/seed_N.json``."""

from pathlib import Path

from .columns import Column
from .metrics import METRICS, Metric
from .results import load_result, summarise
from .sheet import NONE, Sheet

FOLDER = 'warm_start'
REQUIRED = 'config', 'seed', 'epochs', 'lr', 'rows'
BY_KEY = {metric.key: (name, metric) for name, metric in METRICS.items()}


def read_warm_starts(results: Path) -> list[list[dict]]:
    """Read them, a list of seeds for each plain config.

    Args:
        results (Path): Folder of our results.

    Raises:
        ValueError: A file is damaged, or the seeds differ in their rows or
            further training.
    """
    return [seeds for folder in sorted((results / FOLDER).glob('*'))
            if (seeds := _read_seeds(folder))]


def _read_seeds(folder: Path) -> list[dict]:
    found = {path: load_result(path, REQUIRED)
             for path in sorted(folder.glob('seed_*.json'))}
    settings = {
        path: (start['epochs'], start['lr'], tuple(
            (row['attention'], row['init_step']) for row in start['rows']))
        for path, start in found.items()
    }
    for path, setting in settings.items():
        first, expected = next(iter(settings.items()))
        if setting != expected:
            raise ValueError(
                f'{path}: epochs, lr and rows {setting}, but {expected} in '
                f'{first.name}; run warm_start.py again with the same options')
    return list(found.values())


def _gate(row: dict) -> tuple[str, str]:
    step = row['init_step']
    gate = "paper's gate" if step is None else f'init_step={step:g}'
    return row['attention'] or 'none', gate if row['attention'] else NONE


def _metric(seeds: list[dict]) -> tuple[str, Metric]:
    return BY_KEY[seeds[0]['rows'][0]['metric']]


def warm_start_column(seeds: list[dict]) -> Column:
    """Lay the seeds of a config out as a table's column, for claims.

    Args:
        seeds (list[dict]): What the seeds left.

    Returns:
        Column: A row for each network, at once and after the last epoch, such
        as ``'SE, init_step=1, at once'``.
    """
    results = {}
    for start in seeds:
        for row in start['rows']:
            name = ', '.join(part for part in _gate(row) if part != NONE)
            for when, value in (('at once', row['before']),
                                ('trained on', row['after'][-1])):
                results.setdefault(f'{name}, {when}', []).append(dict(
                    seed=start['seed'], cfg_options=[],
                    last=dict(epoch=start['epochs'][-1],
                              metrics={row['metric']: value})))
    return Column('warm start', seeds[0]['config'], results)


def warm_start_sheet(seeds: list[dict]) -> Sheet:
    """The metric of a plain network after an attention was put in."""
    name, metric = _metric(seeds)
    groups = {}
    for start in seeds:
        for row in start['rows']:
            groups.setdefault(_gate(row), []).append(
                [row['before'], *row['after']])
    rows = [[
        *gate,
        *(summarise([value * metric.scale for value in values]).format(2)
          for values in zip(*members)), str(len(members))
    ] for gate, members in groups.items()]
    start = seeds[0]
    return Sheet(
        f'Attention put into the trained plain network of '
        f'{start["config"]}, {name} ({metric.unit})',
        ['Attention', 'Gate', 'At once',
         *(f'After {epochs} epoch{"s" * (epochs > 1)}'
           for epochs in start['epochs']), 'seeds'], rows, [
             'The further training has the constant learning rate '
             f'{start["lr"]:g}. Numbers are the mean ± sample standard '
             'deviation over the seeds.'
         ], labels=2)
