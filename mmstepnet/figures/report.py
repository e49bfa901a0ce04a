"""The report that compares runs: one page without a network, and PNGs."""

import importlib.resources
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jinja2
import numpy as np
import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from mmstepnet.stiffness import MEANS, READING_TEXTS, READINGS, Training
from mmstepnet.stiffness.trajectories import DRAWS
from mmstepnet.version import __version__

from .attention_values import attention_figure
from .degrees import OCCURRENCE, PROPORTION, degrees_figure
from .figures import save_report_figures
from .ranking import rank_correlation, ranking_figure, runs_by_metric
from .runs import Run, by_model, same_blocks
from .training import training_figure
from .trajectories import SAMPLES, overlay_figure, trajectory_figure

PAGE_NAME = 'stiffness_report.html'

MOST_POINTS = 60_000
"""Points of all scatter plots of a page together: about 1 MB of it."""


class Panel(NamedTuple):
    """A figure of the page.

    Attributes:
        number (int, optional): Number of the figure in the paper; None where
            it has none.
        title (str): Heading.
        how_to_read (str): A paragraph, HTML.
        figures (dict[str, go.Figure]): Name in the drop-down list -> figure.
        notes (list[str]): What holds for these runs.
    """

    number: int | None
    title: str
    how_to_read: str
    figures: dict[str, go.Figure]
    notes: list[str]

    @property
    def id(self) -> str:
        """Where links to it go."""
        return (f'figure-{self.number}' if self.number else
                self.title.lower().replace(' ', '-'))

    @property
    def height(self) -> int:
        """Height of the first figure in pixels."""
        return next(iter(self.figures.values())).layout.height

    @property
    def json(self) -> str:
        """The figures as the page carries them, inside a script element."""
        figures = ','.join(f.to_json() for f in self.figures.values())
        # A label may hold '</script>'.
        return f'[{figures}]'.replace('<', '\\u003c')


def save_report(runs: Sequence[Run], out_dir: str | Path,
                trainings: Mapping[str, Training] | None = None) -> Path:
    """Write the page and the PNG figures that compare runs.

    Args:
        runs (Sequence[Run]): What is compared, in one reading.
        out_dir (str | Path): Where the files go; made if missing.
        trainings (Mapping[str, Training], optional): What
            :func:`~mmstepnet.stiffness.read_trainings` found, for a panel of
            its own. Defaults to none.

    Returns:
        Path: The page. It holds all that it shows, plotly.js included.
    """
    images = save_report_figures(runs, out_dir, trainings)
    path = Path(out_dir) / PAGE_NAME
    path.write_text(
        report_page(runs, [i.name for i in images], trainings), 'utf-8')
    return path


def report_page(runs: Sequence[Run], images: Sequence[str] = (),
                trainings: Mapping[str, Training] | None = None) -> str:
    """The page, HTML.

    Args:
        runs (Sequence[Run]): What is compared.
        images (Sequence[str]): PNG files beside the page. Defaults to none.
        trainings (Mapping[str, Training], optional): See
            :func:`save_report`. Defaults to none.
    """
    template = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined).from_string(
            importlib.resources.files('mmstepnet.figures').joinpath(
                'report.html.jinja').read_text('utf-8'))
    return template.render(
        runs=runs,
        reading=runs[0].reading,
        reading_texts=READING_TEXTS,
        samples=_range([len(run.nsi) for run in runs]),
        splits=', '.join(sorted({
            str(run.trajectories.settings['split']) for run in runs})),
        readings=READINGS,
        means=MEANS,
        draws=DRAWS,
        excluded=_excluded(runs),
        notes=report_notes(runs),
        seeds=_seeds(runs),
        rankings={
            name: (members, rank_correlation(members))
            for name, members in runs_by_metric(runs).items()
        },
        panels=report_panels(runs, trainings),
        images=images,
        version=__version__,
        plotly_js=get_plotlyjs())


def report_notes(runs: Sequence[Run]) -> list[str]:
    """What a reader must know before comparing these runs."""
    notes = []
    shown = [run.trajectories for run in runs]
    for what, values, meaning in (
            ('data splits', {t.settings['split'] for t in shown},
             'TNS measured on different data should not be ranked against '
             'each other.'),
            ('numbers of samples', set(map(len, shown)),
             'The mean over fewer samples is less certain.'),
            ('block structures', {t.structure for t in shown},
             'The paper compares TNS for one backbone only; Figure 10 lays '
             'only equal structures over each other.'),
            ('metrics', runs_by_metric(runs),
             'Figure 7 keeps them apart: there is one plot and one rank '
             'correlation for each.')):
        if len(values) > 1:
            notes.append(
                f'The runs have {len(values)} different {what}. {meaning}')
    flat = [run.label for run in runs if run.trajectories.single_block_stages]
    if flat:
        notes.append(
            f'TNS is 0 by definition for {", ".join(flat)}: with one recorded '
            'block a stage (ResNet-18 and other nets of two blocks a stage, '
            'the first left out) every NSI equals its stage mean. With the '
            'mean of all blocks it is not. Use a deeper net to study '
            'stiffness.')
    missing = [run.label for run in runs if run.accuracy is None]
    if missing:
        notes.append('No accuracy was found for ' + ', '.join(missing) +
                     '; Figure 7 leaves these runs out.')
    return notes


def report_panels(runs: Sequence[Run],
                  trainings: Mapping[str, Training] | None = None,
                  ) -> list[Panel]:
    """The figures of the page, in the paper's order, then trainings."""
    panels = [
        Panel(
            2, 'Stiffness over all degrees',
            'Each map is one run. Its colour is δ(M), the share of samples '
            'whose trajectory is stiff to degree M: at least one block has an '
            'NSI of at least M<sub>2</sub> and of at least '
            '1 + M<sub>1</sub> times the mean of its stage. The volume under '
            'a map is the run’s total neural stiffness (TNS, above the map), '
            'computed exactly rather than from the grid. Brighter and wider '
            'means a more apparent stiffness phenomenon.',
            {'': degrees_figure(runs, OCCURRENCE)}, []),
        Panel(
            3, 'NSI along the trajectory',
            'The neural stiffness index of every recorded block, from input '
            'to output. The line is the mean over all samples, the band '
            f'holds 80 % of them, thin lines are {SAMPLES} single samples. '
            'Shading separates the stages. Sharp peaks inside a stage are '
            'the stiff blocks; a flat line has none.',
            {run.label: trajectory_figure(run) for run in runs}, []),
        Panel(
            6, 'Stiffness proportion',
            'As Figure 2, but the colour is p̂(M), the mean share of blocks '
            'that are stiff to degree M. Small values say that only a few '
            'blocks of a trajectory are stiff. The number above a map is '
            'its integral ∬p̂.',
            {'': degrees_figure(runs, PROPORTION)}, []),
    ]
    rankings = {name: ranking_figure(members)
                for name, members in runs_by_metric(runs).items()}
    if rankings:
        panels.append(
            Panel(
                7, 'Accuracy against TNS',
                'Each point is one run; runs that share a name share a '
                'colour. Kendall’s τ and Spearman’s ρ compare the order of '
                'the runs by TNS with that by accuracy: +1 is the same order, '
                '−1 the reverse, 0 none. p is the chance of such a value '
                'without any relation; few runs cannot give a small one.',
                rankings, []))
    panels.append(_attention_panel(runs))
    panels.append(
        Panel(
            10, 'NSI of several runs',
            'Mean NSI at every block, run over run: seeds of one model, or '
            'all models with the same blocks. Where the seeds of one model '
            'coincide, the stiff blocks belong to model and data and not to '
            'the random start. Click a name in the legend to hide it, '
            'double-click to see it alone.',
            {title: overlay_figure(members)
             for title, members in same_blocks(runs).items()}, []))
    if trainings:
        panels.append(
            Panel(
                None, 'Over training',
                'Above, TNS at each recorded checkpoint of one training; the '
                'band is its 95 % interval over samples. Below, the mean NSI '
                'of every block, from input (top) to output. A row that '
                'brightens is a block that becomes stiff.',
                {name: training_figure(training)
                 for name, training in trainings.items()}, []))
    return panels


def _attention_panel(runs: Sequence[Run]) -> Panel:
    shown = [run for run in runs if run.adapts]
    notes = []
    figures = {}
    if shown:
        blocks = sum(len(run.trajectories.blocks) for run in shown)
        points = max(MOST_POINTS // blocks, 20)
        figures = {run.label: attention_figure(run, points) for run in shown}
        if any(len(run.nsi) > points for run in shown):
            notes.append(
                f'Points are {points} samples a block, evenly taken; '
                'correlations are of all samples.')
    plain_runs = [run.label for run in runs if not run.adapts]
    if plain_runs:
        notes.append('Left out, their attention value is constant: ' +
                     ', '.join(plain_runs) + '.')
    return Panel(
        9, 'NSI against the attention value',
        'Above, each point is one sample at one block; further blocks are '
        'in the legend, a click shows them. Below left, Pearson’s '
        'correlation over samples at each block; below right, its '
        'distribution along single trajectories, stage by stage where a '
        'stage has three recorded blocks. A negative correlation says that '
        'the attention takes smaller steps where the trajectory is stiff.',
        figures, notes)


def _seeds(runs: Sequence[Run]) -> list[dict]:
    """Mean and standard deviation of models with several runs."""
    rows = []
    for model, members in by_model(runs).items():
        if len(members) == 1:
            continue
        rows.append(dict(
            model=model,
            count=len(members),
            tns=_mean_and_deviation([run.tns for run in members]),
            proportion=_mean_and_deviation(
                [run.proportion for run in members]),
            accuracies={
                name: _mean_and_deviation(
                    [run.known_accuracy.value for run in r])
                for name, r in runs_by_metric(members).items()
            }))
    return rows


def _mean_and_deviation(values: list[float]) -> tuple[float, float | None]:
    """Mean, and standard deviation with Bessel's correction."""
    return (float(np.mean(values)),
            float(np.std(values, ddof=1)) if len(values) > 1 else None)


def _excluded(runs: Sequence[Run]) -> list[tuple[list[str], list[str]]]:
    """Labels of runs that leave out the same blocks, and these."""
    groups = {}
    for run in runs:
        blocks = tuple(run.trajectories.excluded)
        groups.setdefault(blocks, []).append(run.label)
    return [(labels, list(blocks)) for blocks, labels in groups.items()]


def _range(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return f'{low:,}' if low == high else f'{low:,} to {high:,}'
