"""Tables of the paper's figures beside ours."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, variance
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .curves import (
    LEAST_VALIDATIONS,
    late_validations,
    mean_variance,
    stack_curves,
)
from .metafile import Cell
from .metrics import METRICS
from .results import load_results, summarise

if TYPE_CHECKING:  # a list of results needs no torch
    from mmstepnet.engine.complexity import Complexity

NONE = '–'


@dataclass
class Sheet:
    """A table to be shown: texts, not yet in any format.

    Attributes:
        title (str): Its title.
        header (list[str]): Names of its columns.
        rows (list[list[str]]): Its rows.
        notes (list[str]): Lines below it.
        labels (int): How many columns, from the left, hold labels.
    """

    title: str
    header: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)
    labels: int = 1

    def to_markdown(self) -> str:
        """Write it in Markdown."""
        numbers = len(self.header) - self.labels
        align = ['---'] * self.labels + ['---:'] * numbers
        lines = [
            '| ' + ' | '.join(cell.replace('|', r'\|') for cell in row) + ' |'
            for row in (self.header, align, *self.rows)
        ]
        notes = [f'\n{note}' for note in self.notes]
        return '\n'.join([f'**{self.title}**', '', *lines, *notes, ''])

    def print(self, console: Console) -> None:
        """Print it to a terminal."""
        table = Table(title=self.title, box=SIMPLE_HEAD, title_justify='left')
        for place, name in enumerate(self.header):
            table.add_column(
                escape(name),
                justify='left' if place < self.labels else 'right')
        for row in self.rows:
            table.add_row(*map(escape, row))
        console.print(table)
        for note in self.notes:
            console.print(escape(note))
        console.print()


def list_sheet(tables: dict[str, list[Cell]], results: Path) -> Sheet:
    """List every row of every table.

    Args:
        tables (dict[str, list[Cell]]): All tables.
        results (Path): Folder of our results.
    """
    rows = []
    for table, cells in tables.items():
        for cell in cells:
            name = cell.metrics[0]
            found = load_results(results, cell.name) if cell.config else []
            rows.append([
                table, cell.row, cell.column, cell.name or NONE, name,
                _paper(cell, name),
                _ours(found, 'last', name), str(len(found) or NONE)
            ])
    return Sheet('All tables', [
        'Table', 'Row', 'Column', 'Config', 'Metric', "Paper's",
        'Ours, last epoch', 'Seeds'
    ], rows, labels=5)


def table_sheets(cells: Sequence[Cell], results: Path,
                 measure: Callable[[str], 'Complexity']) -> list[Sheet]:
    """Set the paper's figures beside ours, a sheet a column and metric.

    Args:
        cells (Sequence[Cell]): Cells of one table.
        results (Path): Folder of our results.
        measure (Callable): Counts parameters and operations of a config.
    """
    sheets = []
    for column in dict.fromkeys(cell.column for cell in cells):
        chosen = [cell for cell in cells if cell.column == column]
        sizes = {
            cell.config: measure(str(cell.config))
            for cell in chosen if cell.config is not None
        }
        found = {
            cell.config: load_results(results, cell.name)
            for cell in chosen if cell.config is not None
        }
        for name in dict.fromkeys(m for cell in chosen for m in cell.metrics):
            sheets.append(_sheet(chosen, column, name, sizes, found))
            robustness = _robustness_sheet(chosen, column, name, found)
            if robustness.rows:
                sheets.append(robustness)
        stiffness = _stiffness_sheet(chosen, column, found)
        if stiffness.rows:
            sheets.append(stiffness)
    return sheets


def _robustness_sheet(cells: Sequence[Cell], column: str, name: str,
                      found: dict[Path, list[dict]]) -> Sheet:
    """The second paper's robustness figure, its Section 4.2."""
    metric, rows = METRICS[name], []
    for cell in cells:
        results = found.get(cell.config, [])
        curves = stack_curves(results, metric.key)
        if curves is None:
            continue
        epochs, values = curves
        late = late_validations(epochs)
        if len(results) < 2 and not late.any():
            continue
        ends = [r['last']['metrics'][metric.key] * metric.scale
                for r in results]
        rows.append([
            cell.row,
            f'{variance(ends):.3g}' if len(ends) > 1 else NONE,
            str(len(results)),
            *((f'{mean_variance(values[:, late] * metric.scale):.3g}',
               f'{epochs[late][0]}-{epochs[late][-1]}') if late.any() else
              (NONE, NONE))
        ])
    on_test = all(r['best'] for results in found.values() for r in results)
    split = 'test' if on_test else 'validation'
    return Sheet(
        f'Table {cells[0].table}, {column}, {name}: variance', [
            'Row', 'over seeds, last epoch', 'seeds', 'over last epochs',
            'epochs'
        ], rows, [
            'Sample variances, in squared units of the table. Over seeds: on '
            'the test data. Over the last epochs: of each seed\'s validations '
            f'on the {split} data after these epochs, then the mean of the '
            f'seeds; not of fewer than {LEAST_VALIDATIONS} validations.'
        ])


def _stiffness_sheet(cells: Sequence[Cell], column: str,
                     found: dict[Path, list[dict]]) -> Sheet:
    """What the StiffnessHook measured in the tests."""
    rows = []
    for cell in cells:
        measured = [r['stiffness'] for r in found.get(cell.config, [])
                    if r.get('stiffness')]
        if measured:
            rows.append([
                cell.row,
                *(_mean([m[key] for m in measured], decimals)
                  for key, decimals in (('tns', 4), ('p_hat', 4),
                                        ('few_stiff', 2))),
                _mean([fmean(m['step']) for m in measured], 2),
                str(len(measured))
            ])
    return Sheet(
        f'Table {cells[0].table}, {column}: stiffness',
        ['Row', 'TNS', '∬p̂', 'p̂ ≤ 10 %', 'Δt', 'seeds'], rows, [
            'Of the trained networks on the test images, mean ± sample '
            'standard deviation over the seeds. p̂ ≤ 10 %: share of the '
            'degrees M that some image is stiff to, M1 and M2 each up to '
            'where one image in a hundred still is; it depends on that end. '
            'Δt: mean step of the same blocks, channels and images.'
        ])


def _mean(values: Sequence[float | None], decimals: int) -> str:
    if None in values:
        return NONE
    return summarise(values).format(decimals)


def _sheet(cells: Sequence[Cell], column: str, name: str,
           sizes: dict[Path, 'Complexity'],
           found: dict[Path, list[dict]]) -> Sheet:
    has_paper = any(cell.paper for cell in cells)
    has_size = any(cell.paper_parameters is not None for cell in cells)
    header = ['Row']
    header += ["#P (M), paper's"] if has_size else []
    header += ['#P (M), ours', 'GFLOPs']
    header += [f"{name}, paper's"] if has_paper else []
    kinds = ['best', 'last'] if _has_best(found) else ['last']
    for which in kinds:
        header += [f'{name}, ours, {which}', 'epoch']
    header.append('seeds')
    rows = []
    for cell in cells:
        size, results = sizes.get(cell.config), found.get(cell.config, [])
        row = [cell.row]
        if has_size:
            row.append(NONE if cell.paper_parameters is None else
                       f'{cell.paper_parameters:.2f}')
        row += [NONE, NONE] if size is None else [
            _millions(size.parameters),
            NONE if size.flops is None else f'{size.flops / 1e9:.3f}'
        ]
        if has_paper:
            row.append(_paper(cell, name))
        for which in kinds:
            row += [_ours(results, which, name), _epochs(results, which)]
        rows.append(row + [str(len(results) or NONE)])
    unit = METRICS[name].unit
    title = f'Table {cells[0].table}, {column}, {name}'
    title += f' ({unit})' if unit else ''
    return Sheet(title, header, rows, _notes(cells, sizes, found))


def _notes(cells: Sequence[Cell], sizes: dict[Path, 'Complexity'],
           found: dict[Path, list[dict]]) -> list[str]:
    notes = []
    for (height, width), part in dict.fromkeys(
            (size.input_size, size.part) for size in sizes.values()
            if size.input_size):
        notes.append(
            f'GFLOPs: of the {part} for one image of {height}x{width}, '
            'multiplications and additions counted as two, pooling, products, '
            'norms and activations included.')
    if any(found.values()):
        best = ('Best: the epoch of each seed that is best on the test data, '
                'which flatters every row alike; last' if _has_best(found) else
                'Last')
        notes.append('Ours: mean ± sample standard deviation over the seeds. '
                     f'{best}: after all epochs.')
    lost = [cell.row for cell in cells if cell.config is None]
    if lost:
        notes.append(f'{", ".join(lost)}: cannot be run, there is no config.')
    for cell in cells:
        results = found.get(cell.config)
        if results and results[0]['cfg_options']:
            notes.append(f'{cell.row}: ours with --cfg-options '
                         f'{" ".join(results[0]["cfg_options"])}')
    return notes


def _has_best(found: dict[Path, list[dict]]) -> bool:
    """Whether results may have a best epoch.

    Those that are validated on other data than they are tested on have none.
    """
    results = [r for rows in found.values() for r in rows]
    return not results or any(r['best'] is not None for r in results)


def _millions(count: int) -> str:
    """Two decimals as in the paper, more for very small networks."""
    return f'{count / 1e6:.2f}' if count >= 50_000 else f'{count / 1e6:.5f}'


def _paper(cell: Cell, name: str) -> str:
    figure = cell.paper.get(name)
    return NONE if figure is None else figure.format(METRICS[name].decimals)


def _ours(results: Sequence[dict[str, Any]], which: str, name: str) -> str:
    metric = METRICS[name]
    values = [
        result[which]['metrics'][metric.key] * metric.scale
        for result in results if result[which] is not None
    ]
    # An accuracy of half the seeds must not pass for that of all.
    if not values or len(values) < len(results):
        return NONE
    return summarise(values).format(metric.decimals)


def _epochs(results: Sequence[dict[str, Any]], which: str) -> str:
    epochs = sorted(r[which]['epoch'] for r in results if r[which] is not None)
    if not epochs or len(epochs) < len(results):
        return NONE
    low, high = epochs[0], epochs[-1]
    return str(low) if low == high else f'{low}-{high}'
