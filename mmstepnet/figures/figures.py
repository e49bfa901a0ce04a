"""Figures as files, of one recording and of a report."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from matplotlib import rc_context

from mmstepnet.stiffness import DEFAULT_READING, Training, Trajectories

from .attention_values import draw_attention
from .degrees import OCCURRENCE, PROPORTION, draw_degrees
from .ranking import draw_ranking, runs_by_metric
from .runs import Run, same_blocks
from .style import PAPER_STYLE
from .training import draw_training
from .trajectories import draw_overlay, draw_trajectories


def save_stiffness_figures(trajectories: Trajectories,
                           out_dir: str | Path,
                           name: str,
                           reading: str = DEFAULT_READING,
                           format: str = 'png') -> list[Path]:
    """Draw the figures of one recording.

    The paper's Figures 2 (δ over the degrees M), 3 (NSI along the blocks),
    6 (stiffness proportion) and, where an attention value varies, 9 (NSI
    against it).

    Args:
        trajectories (Trajectories): What was recorded.
        out_dir (str | Path): Where the files go; made if missing.
        name (str): What their names begin with, and the title.
        reading (str): Reading of NSI: 'adaptive', 'unit' or 'returned'.
            Defaults to 'adaptive'.
        format (str): Of the files, one that matplotlib writes: 'png', 'pdf',
            'svg', etc. Defaults to 'png'.

    Returns:
        list[Path]: The files, ``NAME_figure_2.png`` etc.

    Raises:
        ValueError: The reading is unknown.
    """
    run = Run(name, name, trajectories, reading)
    drawings = _drawings_of_each([run])
    if run.adapts:
        drawings['figure_9'] = partial(draw_attention, run)
    return _save(drawings.items(), out_dir, f'{name}_', format)


def save_report_figures(runs: Sequence[Run],
                        out_dir: str | Path,
                        trainings: Mapping[str, Training] | None = None,
                        format: str = 'png') -> list[Path]:
    """Draw a report's Figures 2, 3, 6, 7, 9 and 10, and one a training.

    Args:
        runs (Sequence[Run]): What is compared.
        out_dir (str | Path): Where the files go; made if missing.
        trainings (Mapping[str, Training], optional): Names and checkpoints of
            trainings. Defaults to none.
        format (str): Of the files, one that matplotlib writes: 'png', 'pdf',
            'svg', etc. Defaults to 'png'.

    Returns:
        list[Path]: The files. Figure 9 is one file a run whose attention
        value varies, Figure 10 one a set of runs with the same blocks;
        Figure 7 is left out where no run has an accuracy.
    """
    drawings = _drawings_of_each(runs)
    groups = runs_by_metric(runs)
    if groups:
        drawings['figure_7'] = partial(draw_ranking, groups)
    for i, run in enumerate(runs, 1):
        if run.adapts:
            drawings[f'figure_9_run_{i:02}'] = partial(draw_attention, run)
    for i, (title, members) in enumerate(same_blocks(runs).items(), 1):
        drawings[f'figure_10_set_{i:02}'] = partial(
            draw_overlay, members, title)
    for i, (title, training) in enumerate((trainings or {}).items(), 1):
        drawings[f'training_{i:02}'] = partial(
            draw_training, title, training)
    return _save(drawings.items(), out_dir, '', format)


def _drawings_of_each(runs: Sequence[Run]) -> dict:
    return {
        'figure_2': partial(draw_degrees, runs, OCCURRENCE),
        'figure_3': partial(draw_trajectories, runs),
        'figure_6': partial(draw_degrees, runs, PROPORTION),
    }


def _save(drawings: Iterable, out_dir: str | Path, prefix: str,
          format: str) -> list[Path]:
    out_dir = Path(out_dir)
    out_dir.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, draw in drawings:
        paths.append(out_dir / f'{prefix}{name}.{format}')
        with rc_context(PAPER_STYLE):
            draw().savefig(paths[-1])
    return paths
