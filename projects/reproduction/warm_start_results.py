"""What warm_start.py leaves, ``warm_start/CONFIG/seed_N.json``."""

from pathlib import Path

from .columns import Column
from .metrics import METRICS
from .results import read_json, summarise
from .sheet import NONE, Sheet

FOLDER = 'warm_start'
WHEN = {'before': 'at once', 'after': 'trained on'}


def read_warm_starts(results: Path) -> list[list[dict]]:
    """Read them, a list of seeds for each plain config.

    Args:
        results (Path): Folder of our results.

    Raises:
        ValueError: A file is damaged, or the seeds differ in their rows or
            further training.
    """
    return [_read_seeds(folder)
            for folder in sorted((results / FOLDER).glob('*'))]


def _read_seeds(folder: Path) -> list[dict]:
    found = {}
    for path in sorted(folder.glob('seed_*.json')):
        found[path] = start = read_json(path)
        missing = [k for k in ('config', 'seed', 'epochs', 'lr', 'rows')
                   if k not in start]
        if missing:
            raise ValueError(f'{path} is not of warm_start.py: it lacks '
                             f'{", ".join(missing)}; remove it')
        if path.name != f'seed_{start["seed"]}.json':
            raise ValueError(f'{path} is of seed {start["seed"]}; copies do '
                             'not count, remove it')
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


def warm_start_column(seeds: list[dict]) -> Column:
    """Lay the seeds of a config out as a table's column, for claims.

    Args:
        seeds (list[dict]): What the seeds left.

    Returns:
        Column: A row for each network, at once and trained on, such as
        ``'SE, init_step=1, at once'``.
    """
    key = METRICS['Accuracy'].key
    results = {}
    for start in seeds:
        for row in start['rows']:
            name = ', '.join(part for part in _gate(row) if part != NONE)
            for when, text in WHEN.items():
                results.setdefault(f'{name}, {text}', []).append(dict(
                    seed=start['seed'], cfg_options=[],
                    last=dict(epoch=start['epochs'],
                              metrics={key: row[when]})))
    return Column('warm start', seeds[0]['config'], results)


def warm_start_sheet(seeds: list[dict]) -> Sheet:
    """Accuracy of a plain network after an attention was put in."""
    groups = {}
    for start in seeds:
        for row in start['rows']:
            groups.setdefault(_gate(row), []).append(row)
    rows = [[
        *gate,
        *(summarise([row[when] for row in members]).format(2)
          for when in WHEN), str(len(members))
    ] for gate, members in groups.items()]
    start = seeds[0]
    return Sheet(
        f'Attention put into the trained plain network of '
        f'{start["config"]}, Accuracy (%)',
        ['Attention', 'Gate', 'At once', f'After {start["epochs"]} epoch',
         'seeds'], rows, [
             f'Further training at the constant rate {start["lr"]:g}. Mean ± '
             'sample standard deviation over the seeds.'
         ], labels=2)
