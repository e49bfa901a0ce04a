"""Pictures of a table's results."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from mmstepnet.stiffness import correlate_ranks

from .block_figures import draw_blocks
from .claims import CLAIMS, LABELS, RANKS
from .columns import Column
from .curves import stack_curves, stack_validations
from .findings import model_means
from .metafile import Cell
from .metrics import METRICS
from .model_figures import draw_rows, draw_stiffness
from .readings import DEFAULT
from .results import load_results, validated_on_test
from .seed_figures import draw_curves, draw_violins
from .step_figures import draw_steps

MOST_ROWS = 12
"""More are drawn as lines of points: their curves could not be told apart."""


def save_plots(cells: Sequence[Cell], results: str | Path,
               out: str | Path) -> list[Path]:
    """Draw curves over the epochs and violins over the seeds.

    Args:
        cells (Sequence[Cell]): Cells of one table.
        results (str | Path): Folder of our results.
        out (str | Path): Gets ``TABLE_COLUMN_curves.png``, a panel for the
            training loss and one for each metric, and for each metric
            ``TABLE_COLUMN_METRIC_violin.png``, that of the last epoch. Of
            more than 12 rows it gets ``TABLE_COLUMN_METRIC_rows.png``
            alone. Where validations measured stiffness, a panel more shows
            TNS, and ``TABLE_COLUMN_steps.png`` the attention values of the
            rows that have any. Where the plain network, SE and StepNet
            have stages of three recorded blocks or more,
            ``TABLE_COLUMN_blocks.png`` shows theirs.

    Returns:
        list[Path]: The files.

    Raises:
        FileNotFoundError: There is no result of any of the cells.
        ValueError: A result is damaged, see :func:`load_results`.
    """
    saved = []
    for column in dict.fromkeys(cell.column for cell in cells):
        chosen = [cell for cell in cells if cell.column == column]
        found = {
            cell.row: rows
            for cell in chosen
            if cell.config and (rows := load_results(
                Path(results), cell.name))
        }
        if not found:
            continue
        names = dict.fromkeys(m for cell in chosen for m in cell.metrics)
        stem = _plain(f'{chosen[0].table}_{column}')
        many = len(found) > MOST_ROWS
        panels = {} if many else _panels(found, names)
        if panels:
            path = Path(out) / f'{stem}_curves.png'
            saved.append(_save(draw_curves(panels), path))
        steps = _steps(found)
        stages = next((r['stiffness']['stages'] for row in steps
                       for r in found[row] if r.get('stiffness')), None)
        if stages and panels:
            title = next(t for t in panels if t.startswith(next(iter(names))))
            path = Path(out) / f'{stem}_steps.png'
            saved.append(_save(draw_steps(steps, stages, title,
                                          panels[title]), path))
        blocks = _blocks(found)
        if blocks:
            path = Path(out) / f'{stem}_blocks.png'
            saved.append(_save(draw_blocks(blocks), path))
        kind, draw = ('rows', draw_rows) if many else ('violin', draw_violins)
        for name in names:
            ends = _ends(found, name)
            if ends:
                path = Path(out) / f'{stem}_{_plain(name)}_{kind}.png'
                title = f'{_with_unit(name)}, last epoch'
                saved.append(_save(draw(title, ends), path))
    if not saved:
        raise FileNotFoundError(
            f'there are no results of table {cells[0].table!r} in {results}; '
            f'run it with projects.reproduction.paper run {cells[0].table}')
    return saved


def save_ranking(columns: Sequence[Column], out: Path) -> list[Path]:
    """Draw accuracy over TNS (Fig. 7), of every column that has models.

    TNS is that of the adaptive reading with the mean over the stage.

    Args:
        columns (Sequence[Column]): Columns of tables.
        out (Path): Gets ``TABLE_COLUMN_tns.png``.

    Returns:
        list[Path]: The files.
    """
    claim, = (c for c in CLAIMS if c.kind == RANKS)
    saved = []
    for column in columns:
        means, _ = model_means(claim, column)
        if len(means) < 3:
            continue
        found = correlate_ranks(*zip(*means.values()), 'models')
        path = out / f'{_plain(f"{column.table}_{column.name}")}_tns.png'
        saved.append(_save(draw_stiffness(
            means, f'{column}\n{DEFAULT}\n{found}'), path))
    return saved


def _panels(found: dict[str, list[dict]], names: Sequence[str]) -> dict:
    """Curves by panel and row; a panel without any curve is left out."""
    split = 'test' if validated_on_test(found) else 'validation'
    panels = {}
    quantities = [('training loss', 'loss', 1)]
    quantities += [(f'{_with_unit(name)}, {split}', METRICS[name].key,
                    METRICS[name].scale) for name in names]
    for title, key, scale in quantities:
        stacks = {row: stack_curves(r, key) for row, r in found.items()}
        panels[title] = {
            row: (stack[0], stack[1] * scale)
            for row, stack in stacks.items() if stack is not None
        }
    stacks = {row: stack_validations(
        r, lambda record: record['tns'][DEFAULT.nsi][DEFAULT.mu])
        for row, r in found.items()}
    panels[f'TNS, {DEFAULT}'] = {
        row: stack for row, stack in stacks.items() if stack is not None}
    return {title: curves for title, curves in panels.items() if curves}


def _steps(found: dict[str, list[dict]]) -> dict:
    """Epochs and mean attention values by row; a plain network has none."""
    steps = {}
    for row, results in found.items():
        stack = stack_validations(results, lambda record: record['step'])
        if stack is not None and (stack[1] != 1).any():
            steps[row] = stack[0], stack[1].mean(0)
    return steps


def _blocks(found: dict[str, list[dict]]) -> dict[str, list[dict]]:
    """What was kept of blocks of the rows that the paper shows."""
    shown = {'SE', *LABELS['plain'], *LABELS['StepNet']}
    rows = {}
    for row in shown & found.keys():
        kept = [r['stiffness'] for r in found[row] if r.get('stiffness')]
        if any(Counter(k['stages']).most_common(1)[0][1] >= 3
               and isinstance(k['correlation'], dict) for k in kept):
            rows[row] = kept
    return {row: rows[row] for row in found if row in rows}


def _ends(found: dict[str, list[dict]], name: str) -> dict[str, np.ndarray]:
    metric = METRICS[name]
    ends = {}
    for row, results in found.items():
        values = [r['last']['metrics'].get(metric.key) for r in results]
        if None not in values:
            ends[row] = np.array(values) * metric.scale
    return ends


def _with_unit(name: str) -> str:
    unit = METRICS[name].unit
    return f'{name} ({unit})' if unit else name


def _save(figure: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path


def _plain(text: str) -> str:
    """A name of letters, digits, dashes and underscores."""
    return re.sub(r'[^\w-]+', '_', text).strip('_')
