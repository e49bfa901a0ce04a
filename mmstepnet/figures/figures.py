"""PNG figures, of one record and of a report."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from matplotlib import rc_context
from mmengine.utils import track_iter_progress

from mmstepnet.stiffness.trajectory import DEFAULT_READING

from .attention_values import adapts, draw_attention
from .degrees import OCCURRENCE, PROPORTION, draw_degrees
from .ranking import draw_ranking, runs_by_metric
from .runs import Run, load_run, same_blocks
from .style import PAPER_STYLE
from .trajectories import draw_overlay, draw_trajectories


def save_stiffness_figures(npz_path: str | Path,
                           out_dir: str | Path,
                           reading: str = DEFAULT_READING) -> list[Path]:
    """Draw the figures of one record.

    The paper's Figures 2 (δ over the degrees M), 3 (NSI along the blocks),
    6 (stiffness proportion) and, where an attention value varies, 9 (NSI
    against it).

    Args:
        npz_path (str | Path): Record, ``stiffness_*.npz``.
        out_dir (str | Path): Where the files go; made if missing.
        reading (str): Reading of NSI: 'adaptive', 'unit' or 'returned'.
            Defaults to 'adaptive'.

    Returns:
        list[Path]: The PNG files, ``NAME_OF_THE_RECORD_figure_2.png`` etc.

    Raises:
        FileNotFoundError: There is no such record.
        ValueError: The record is damaged or the reading unknown.
    """
    path = Path(npz_path)
    run = load_run(path, path.stem, reading=reading)
    drawings = _drawings_of_each([run])
    if adapts(run):
        drawings['figure_9'] = lambda: draw_attention(run)
    return _save(drawings.items(), out_dir, f'{path.stem}_')


def save_report_figures(runs: Sequence[Run],
                        out_dir: str | Path) -> list[Path]:
    """Draw the figures of a report, Figures 2, 3, 6, 7, 9 and 10.

    Args:
        runs (Sequence[Run]): What is compared.
        out_dir (str | Path): Where the files go; made if missing.

    Returns:
        list[Path]: The PNG files. Figure 9 is one file a run whose attention
        value varies, Figure 10 one a set of runs with the same blocks;
        Figure 7 is left out where no run has an accuracy.
    """
    drawings = _drawings_of_each(runs)
    groups = runs_by_metric(runs)
    if groups:
        drawings['figure_7'] = lambda: draw_ranking(groups)
    for i, run in enumerate(runs, 1):
        if adapts(run):
            drawings[f'figure_9_run_{i:02}'] = (
                lambda run=run: draw_attention(run))
    for i, (title, members) in enumerate(same_blocks(runs).items(), 1):
        drawings[f'figure_10_set_{i:02}'] = (
            lambda title=title, members=members: draw_overlay(members, title))
    return _save(track_iter_progress(list(drawings.items())), out_dir, '')


def _drawings_of_each(runs: Sequence[Run]) -> dict:
    return {
        'figure_2': lambda: draw_degrees(runs, OCCURRENCE),
        'figure_3': lambda: draw_trajectories(runs),
        'figure_6': lambda: draw_degrees(runs, PROPORTION),
    }


def _save(drawings: Iterable, out_dir: str | Path, prefix: str) -> list[Path]:
    out_dir = Path(out_dir)
    out_dir.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, draw in drawings:
        paths.append(out_dir / f'{prefix}{name}.png')
        with rc_context(PAPER_STYLE):
            draw().savefig(paths[-1])
    return paths
