"""NSI against attention value, Figure 9 of the paper."""

from typing import Any

import altair as alt
import numpy as np

from mmstepnet.stiffness.gates import LEAST_DEVIATION

from .runs import Run
from .style import (
    SMALL_GAP,
    block_bars,
    block_names,
    block_width,
    chart,
    colors,
    number,
    panels,
    wrapped,
)
from .trajectories import spread_indices

NEAR_ONE = 0.1
"""Attention values that are all as near to 1 are shown minus 1."""

WIDTH = 1000
"""Pixels of the small panels of a row, in a file."""


def attention_figure(run: Run, most_points: int = 200) -> alt.ConcatChart:
    """Figure 9 of one run.

    A small panel for each block, the correlation over samples at every block,
    and the distribution of the correlations along trajectories. Where the
    attention value deviates by less than :data:`LEAST_DEVIATION`, there is
    no correlation; where all do, the panels share one range of it.

    Args:
        run (Run): Its attention value varies.
        most_points (int): Samples shown at each block. Defaults to 200.
    """
    recorded = run.trajectories
    deviations = recorded.step_mean.std(0, dtype=float)
    over_samples = recorded.block_correlations(run.reading)
    over_samples[deviations < LEAST_DEVIATION] = np.nan
    shown: list[Any] = [_scatter(run, most_points, deviations, over_samples)]
    width = block_width(recorded.blocks)
    known = np.flatnonzero(~np.isnan(over_samples))
    if len(known):
        bars = block_bars(
            'over samples, block by block',
            recorded.blocks,
            {recorded.blocks[k]: float(over_samples[k]) for k in known},
            "Pearson's r",
        )
        shown.append(bars)
    along = _along_trajectories(run)
    if along:
        shown.append(_histogram(along).properties(width=width))
    return panels(shown, [*along], columns=1, name=run.label).resolve_scale(
        color='independent'
    )


def _scatter(
    run: Run,
    most_points: int,
    deviations: np.ndarray,
    over_samples: np.ndarray,
) -> alt.FacetChart:
    """A small panel for each block whose attention value varies.

    Args:
        run (Run): The run.
        most_points (int): Samples shown at each block.
        deviations (ndarray): Of the attention value over samples, (L,).
        over_samples (ndarray): Correlations, NaN where none is shown, (L,).
    """
    recorded = run.trajectories
    at = recorded.adaptive_blocks
    rows = spread_indices(len(run.nsi), most_points)
    names = block_names(recorded.blocks)
    labels = []
    for k in at:
        label = f'{names[k]}\ndeviation {deviations[k]:.2g}'
        if not np.isnan(over_samples[k]):
            label += f', r = {over_samples[k]:.2f}'
        labels.append(label)
    step, what = recorded.step_mean[rows][:, at], 'attention value'
    if np.abs(step - 1).max() < NEAR_ONE:
        step, what = step - 1, 'attention value − 1'
    # A letter is about 6 pixels wide.
    lines = [line for label in labels for line in label.split('\n')]
    small = max(120, 6 * max(map(len, lines)))
    axis = alt.Axis(title=None, tickCount=3, labelOverlap=True)
    scale = alt.Scale(zero=False)
    step_axis, step_scale = axis, scale
    if deviations[at].max() < LEAST_DEVIATION:
        # A range of its own would make each look as if it moved. A little
        # wider, so that both ends are named where the mean is nearly 1.
        around = 1.1 * LEAST_DEVIATION
        ends = (
            min(step.min(), step.mean() - around),
            max(step.max(), step.mean() + around),
        )
        step_axis = alt.Axis(title=None, tickCount=2)
        step_scale = alt.Scale(domain=[float(end) for end in ends])
    points = (
        alt.Chart()
        .mark_point(filled=True, size=10, opacity=0.6)
        .encode(
            alt.X('step:Q', axis=step_axis, scale=step_scale),
            alt.Y('nsi:Q', axis=axis, scale=scale),
            tooltip=[
                'name:N',
                'sample:N',
                number('step', what, digits=8),
                number('nsi', 'NSI'),
            ],
        )
        .properties(width=small, height=90)
    )
    data = chart(
        step=step.T.ravel(),
        nsi=run.nsi[rows][:, at].T.ravel(),
        sample=np.tile(rows, len(at)),
        block=np.repeat(labels, len(rows)),
        name=np.repeat([names[k] for k in at], len(rows)),
    )
    header = alt.Header(
        title=None, labelExpr="split(datum.label, '\\n')", labelAnchor='start'
    )
    return alt.FacetChart(
        data=data.data,
        transform=data.transform,
        spec=points,
        facet=alt.Facet('block:N', sort=labels, header=header),
        columns=min(len(at), max(WIDTH // (small + SMALL_GAP), 1)),
        title=[
            *wrapped(run.label),
            f'NSI ({run.reading}) against the',
            f'{what} (mean over C, H, W)',
        ],
    ).resolve_scale(x='independent', y='independent')


def _along_trajectories(run: Run) -> dict[str, np.ndarray]:
    """Correlations along trajectories, where the attention value deviates."""
    recorded = run.trajectories
    along = recorded.trajectory_correlations(run.reading)
    for stage, name in [*recorded.stage_names.items(), (None, 'all stages')]:
        of_stage = recorded.stages == stage
        if stage is None:
            of_stage = np.full(len(recorded.stages), True)
        deviations = recorded.step_mean[:, of_stage].std(1, dtype=float)
        if np.median(deviations) < LEAST_DEVIATION:
            along.pop(name, None)
    return along


def _histogram(along: dict[str, np.ndarray]) -> alt.Chart:
    """Shares of samples by their correlation, a line for each stage."""
    edges = np.linspace(-1, 1, 41)
    values: Any = [
        # Binned here: a page need not carry a value a sample.
        np.histogram(each, edges)[0] / len(each)
        for each in along.values()
    ]
    return (
        chart(
            r=np.tile((edges[:-1] + edges[1:]) / 2, len(along)),
            share=np.ravel(values),
            stage=np.repeat([*along], 40),
        )
        .mark_area(interpolate='step', opacity=0.25, line=True)
        .encode(
            alt.X(
                'r:Q',
                title="Pearson's r",
                scale=alt.Scale(domain=[-1, 1]),
                axis=alt.Axis(tickCount=5),
            ),
            alt.Y('share:Q', title='share of samples', stack=None),
            alt.Color('stage:N', scale=colors([*along])),
            tooltip=[
                'stage:N',
                number('r', 'r'),
                number('share', 'share of samples'),
            ],
        )
        .properties(title='along trajectories', height=150)
    )
