"""Figures as files, of one recording and of a report."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import altair as alt

from mmstepnet.checks import check_choice
from mmstepnet.stiffness import DEFAULT_READING, Trainings, Trajectories

from .attention_values import attention_figure
from .degrees import OCCURRENCE, PROPORTION, degrees_figure
from .ranking import compared_runs, ranking_figure
from .runs import Run, same_blocks
from .training import training_figure
from .trajectories import overlay_figure, trajectory_figure

FORMATS = 'png', 'svg', 'pdf'


def save_stiffness_figures(
    trajectories: Trajectories,
    out_dir: str | Path,
    name: str,
    reading: str = DEFAULT_READING,
    format: str = 'png',
) -> list[Path]:
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
        format (str): 'png', 'svg' or 'pdf'. Defaults to 'png'.

    Returns:
        list[Path]: The files, ``NAME_figure_2.png`` etc.

    Raises:
        ValueError: The reading or the format is unknown.
        RuntimeError: A figure cannot be drawn.
    """
    run = Run(name, name, trajectories, reading)
    charts = {
        'figure_2': degrees_figure([run], OCCURRENCE),
        'figure_3': trajectory_figure([run]),
        'figure_6': degrees_figure([run], PROPORTION),
    }
    if run.adapts:
        charts['figure_9'] = attention_figure(run)
    return save_charts(
        {
            Path(out_dir, f'{name}_{figure}.{format}'): chart
            for figure, chart in charts.items()
        }
    )


def save_report_figures(
    runs: Sequence[Run],
    out_dir: str | Path,
    trainings: Trainings | None = None,
    format: str = 'png',
) -> list[Path]:
    """Draw a report's Figures 2, 3, 6, 7, 9 and 10, and one a training.

    Args:
        runs (Sequence[Run]): What is compared.
        out_dir (str | Path): Where the files go; made if missing.
        trainings (Mapping, optional): Checkpoints of trainings by name.
            Defaults to none.
        format (str): 'png', 'svg' or 'pdf'. Defaults to 'png'.

    Returns:
        list[Path]: The files. Figure 9 is one file a run whose attention
        value varies, Figure 10 one a set of several runs with the same
        blocks; Figure 7 is left out where no two runs have an accuracy of
        one metric.

    Raises:
        ValueError: The format is unknown.
        RuntimeError: A figure cannot be drawn.
    """
    return save_charts(
        {
            Path(out_dir, f'{name}.{format}'): chart
            for name, chart in report_charts(runs, trainings).items()
        }
    )


def report_charts(
    runs: Sequence[Run], trainings: Trainings | None = None
) -> dict[str, alt.ConcatChart]:
    """The figures of :func:`save_report_figures`, by the files' stems."""
    charts = {
        'figure_2': degrees_figure(runs, OCCURRENCE),
        'figure_3': trajectory_figure(runs),
        'figure_6': degrees_figure(runs, PROPORTION),
    }
    groups = compared_runs(runs)
    if groups:
        charts['figure_7'] = ranking_figure(groups)
    for i, run in enumerate(runs, 1):
        if run.adapts:
            charts[f'figure_9_run_{i:02}'] = attention_figure(run)
    for i, (title, members) in enumerate(same_blocks(runs).items(), 1):
        charts[f'figure_10_set_{i:02}'] = overlay_figure(members, title)
    for i, (title, training) in enumerate((trainings or {}).items(), 1):
        chart = training_figure(title, training, runs[0].reading)
        charts[f'training_{i:02}'] = chart
    return charts


def save_charts(charts: Mapping[Path, alt.ConcatChart]) -> list[Path]:
    """Write each chart to its file, whose ending says which format.

    The converter holds a JavaScript engine. It runs in a process of its own:
    where the engine aborts or hangs, a training that called this goes on.
    """
    for path in charts:
        check_choice('format', path.suffix[1:], FORMATS)
        path.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name('convert.py'))],
        input=json.dumps(
            {str(path): chart.to_dict() for path, chart in charts.items()}
        ),
        capture_output=True,
        encoding='utf-8',
        timeout=900,
    )
    if done.returncode:
        raise RuntimeError(f'figures cannot be drawn: {done.stderr.strip()}')
    return list(charts)
