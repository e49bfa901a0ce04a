"""Tables of the paper's figures beside ours."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .further_sheets import robustness_sheet, stiffness_sheet
from .metafile import Cell
from .metrics import METRICS
from .results import load_results, summarise, validated_on_test
from .sheet import NONE, Sheet

if TYPE_CHECKING:  # a list of results needs no torch
    from projects.reproduction.complexity import Complexity

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
            robustness = robustness_sheet(chosen, column, name, found)
            if robustness.rows:
                sheets.append(robustness)
        stiffness = stiffness_sheet(chosen, column, found)
        if stiffness.rows:
            sheets.append(stiffness)
    return sheets


def _sheet(cells: Sequence[Cell], column: str, name: str,
           sizes: dict[Path, 'Complexity'],
           found: dict[Path, list[dict]]) -> Sheet:
    has_paper = any(cell.paper for cell in cells)
    has_size = any(cell.paper_parameters is not None for cell in cells)
    header = ['Row']
    header += ["#P (M), paper's"] if has_size else []
    header += ['#P (M), ours', 'GFLOPs']
    header += [f"{name}, paper's"] if has_paper else []
    kinds = ['best', 'last'] if validated_on_test(found) else ['last']
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
            f'GFLOPs are those of the {part} for one image of '
            f'{height}x{width}. A multiplication and an addition count as '
            'two. Pooling, products, norms and activations are included.')
    if any(found.values()):
        best = ('"Best" is the epoch of each seed that is best on the test '
                'data, which flatters every row alike. '
                if validated_on_test(found) else '')
        notes.append('Ours is the mean ± sample standard deviation over the '
                     f'seeds. {best}"Last" is after all epochs.')
    lost = [cell.row for cell in cells if cell.config is None]
    if lost:
        notes.append(f'{", ".join(lost)}: cannot be run, there is no config.')
    for cell in cells:
        results = found.get(cell.config)
        if results and results[0]['cfg_options']:
            notes.append(f'{cell.row}: ours with --cfg-options '
                         f'{" ".join(results[0]["cfg_options"])}')
    return notes


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
