"""RESULTS.md: tables, figures and verdicts, all of it from ``results/``."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from mmstepnet.figures.ranking import correlate_ranks

from .claims import (
    DIGITS,
    FURTHER_TABLES,
    LONG,
    PLAIN,
    PLANNED_SEEDS,
    SHORT,
    TABLE,
    Suite,
    Verdict,
    accuracy,
    judge_claims,
    model_means,
)
from .comparisons import LEAST_SEEDS, LEVEL, NO_RESULTS
from .metafile import Cell
from .model_figures import draw_rows, draw_stiffness
from .plots import save_plots
from .results import load_results, read_json, summarise
from .tables import NONE, Sheet, table_sheets

if TYPE_CHECKING:
    from mmstepnet.engine.complexity import Complexity

WARM_START = 'warm_start'
"""Folder of what warm_start.py writes, ``warm_start/CONFIG/seed_N.json``."""

HEAD = f"""# Results

Written by `python -m projects.reproduction.paper report` from the JSON files of [`results/`](results), one a config and seed; not edited by
hand. `python -m projects.reproduction.paper table NAME --markdown` prints the same tables, `python -m projects.reproduction.paper run NAME --seeds N`
runs what is missing. CIFAR-10 JPEG: class folders of images encoded as JPEG, not the original files.

## Claims

By the tables {', '.join(map('`{}`'.format, (TABLE, *FURTHER_TABLES)))}, at level {LEVEL} two-sided; below the planned number of seeds ({LEAST_SEEDS}, on the digits {PLANNED_SEEDS[DIGITS]}) no test is
made, nor where all seeds differ by the same. "Not decidable at this scale" is what a difference gets that so few seeds cannot tell from 0. Tests are
corrected for the comparisons of their claim, not for the number of claims.
"""  # noqa: E501


def write_report(tables: dict[str, list[Cell]], results: Path, out: Path,
                 measure: Callable[[str], 'Complexity']) -> list[Path]:
    """Write the report and its figures.

    Args:
        tables (dict[str, list[Cell]]): All tables.
        results (Path): Folder of our results.
        out (Path): The report; figures go to ``docs/results/`` beside it.
        measure (Callable): Counts parameters and operations of a config.

    Returns:
        list[Path]: The files.

    Raises:
        ValueError: A result is damaged, see :func:`load_results`, does not
            fit the others, or there is none.
    """
    suite = read_suite([
        cell for table in (TABLE, *FURTHER_TABLES) for cell in tables[table]
    ], results)
    plain, = (cell for cell in tables[TABLE]
              if (cell.column, cell.row) == (SHORT, PLAIN))
    warm_starts = read_warm_starts(results, plain.name)
    if not (warm_starts or any(suite.values())):
        raise ValueError(f'{results.resolve()} has no results of the tables '
                         f'{", ".join((TABLE, *FURTHER_TABLES))}; give their '
                         'folder as --results')
    folder = out.parent / 'docs' / 'results'
    folder.mkdir(parents=True, exist_ok=True)
    figures = []
    for name, figure in _figures(suite).items():
        figures.append(folder / name)
        figure.savefig(figures[-1])
    found = {
        table: cells for table, cells in tables.items()
        if any(load_results(results, c.name) for c in cells if c.config)
    }
    parts = [HEAD]
    parts += [verdict_text(v) for v in judge_claims(suite, warm_starts)]
    parts.append('')
    parts += map(_picture, figures)
    if warm_starts:
        parts += ['## Warm start\n', warm_start_sheet(warm_starts)
                  .to_markdown()]
    parts.append('## Tables\n')
    for table, cells in found.items():
        cells = _with_results(cells, results)
        parts += [sheet.to_markdown()
                  for sheet in table_sheets(cells, results, measure)]
        if table != TABLE:  # which has its figures above
            plots = save_plots(cells, results, folder)
            parts += map(_picture, plots)
            figures += plots
    parts += ['## Where they come from\n',
              provenance_sheet(found, results, warm_starts).to_markdown()]
    out.write_text('\n'.join(parts), encoding='utf-8')
    return [out, *figures]


def read_suite(cells: list[Cell], results: Path) -> Suite:
    """Results of tables' cells, by column and row.

    Raises:
        ValueError: Rows of a column are of different options or epochs.
    """
    suite = {(cell.column, cell.row): load_results(results, cell.name)
             for cell in cells if cell.config}
    settings = {}
    for (column, row), found in suite.items():
        for result in found:
            setting = (f'--cfg-options '
                       f'{" ".join(result["cfg_options"]) or "(none)"}, '
                       f'{result["last"]["epoch"]} epochs')
            first, expected = settings.setdefault(column, (row, setting))
            if setting != expected:
                raise ValueError(
                    f'{column}: {row} has {setting}, but {first} {expected}; '
                    'claims compare rows of one setting. Keep each in its own '
                    '--results folder')
    return suite


def read_warm_starts(results: Path, name: str) -> list[dict]:
    """What warm_start.py wrote for a plain config, a dict a seed.

    Raises:
        ValueError: A file is damaged, or the seeds differ in their rows or
            further training.
    """
    found = {}
    for path in sorted((results / WARM_START / name).glob('seed_*.json')):
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


def warm_start_sheet(warm_starts: list[dict]) -> Sheet:
    """Accuracy of a plain network after an attention was put in."""
    groups = {}
    for start in warm_starts:
        for row in start['rows']:
            groups.setdefault((row['attention'], row['init_step']),
                              []).append(row)
    rows = []
    for (attention, init_step), members in groups.items():
        gate = "paper's" if init_step is None else f'init_step={init_step:g}'
        rows.append([
            attention or 'none', gate if attention else NONE,
            *(summarise([row[when] for row in members]).format(2)
              for when in ('before', 'after')), str(len(members))
        ])
    start = warm_starts[0]
    return Sheet(
        f'Attention put into the trained plain network of '
        f'{start["config"]}, Accuracy (%)',
        ['Attention', 'Gate', 'At once', f'After {start["epochs"]} epoch',
         'seeds'], rows, [
             f'Further training at the constant rate {start["lr"]:g}. Mean ± '
             'sample standard deviation over the seeds.'
         ], labels=2)


def provenance_sheet(tables: dict[str, list[Cell]], results: Path,
                     warm_starts: list[dict]) -> Sheet:
    """Machines, versions, commits and command of each table's results."""
    rows = []
    for table, cells in tables.items():
        names = dict.fromkeys(cell.name for cell in cells if cell.config)
        groups = {}
        for result in (r for n in names for r in load_results(results, n)):
            groups.setdefault(tuple(result['cfg_options']),
                              []).append(result)
        for options, found in groups.items():
            command = ['python -m projects.reproduction.paper run', table,
                       '--seeds', str(max(r['seed'] for r in found) + 1)]
            command += ['--cfg-options', *options] if options else []
            rows.append([table, *_origin(found), f'`{" ".join(command)}`'])
    if warm_starts:
        rows.append(['warm start', *_origin(warm_starts),
                     '`python -m projects.reproduction.warm_start`, see '
                     '[the suite](../../configs/small/README.md)'])
    return Sheet('Runs', [
        'Table', 'Runs', 'Machine', 'PyTorch', 'Commits', 'Command'
    ], rows, labels=6)


def _origin(results: list[dict]) -> list[str]:
    starts = [start for result in results
              for start in result.get('starts', ())]
    commits = {re.sub('(?<=^.{9})[0-9a-f]+', '', str(s['commit']))
               for s in starts}
    return [str(len(results)),
            *(', '.join(sorted({s[key] for s in starts}))
              for key in ('machine', 'torch')), ', '.join(sorted(commits))]


def _with_results(cells: list[Cell], results: Path) -> list[Cell]:
    """Whole columns, of those that have results."""
    columns = {cell.column for cell in cells
               if cell.config and load_results(results, cell.name)}
    return [cell for cell in cells if cell.column in columns]


def _picture(path: Path) -> str:
    return f'![{path.stem}](docs/results/{path.name})\n'


def verdict_text(verdict: Verdict) -> str:
    """Write a verdict with its test and evidence, in Markdown."""
    head = f'- **{verdict.claim}: {verdict.verdict}.**'
    if verdict.verdict == NO_RESULTS:
        return head
    return '\n'.join([f'{head} Test: {verdict.test}.',
                      *(f'  - {line}' for line in verdict.evidence)])


def _figures(suite: Suite) -> dict[str, Figure]:
    figures = {}
    for name, column in (('20', SHORT), ('60', LONG)):
        rows = {row: np.array([accuracy(r) for r in found])
                for (where, row), found in suite.items()
                if where == column and found}
        if rows:
            figures[f'small_{name}.png'] = draw_rows(
                f'Accuracy (%), last epoch\n{column}', rows)
    means = model_means(suite)
    if len(means) > 1:
        found = correlate_ranks(*zip(*means.values()), 'models')
        figures['small_tns.png'] = draw_stiffness(
            means, f'{SHORT}\n{found}')
    return figures
