"""NSI against attention value, Figure 9 of the paper."""

from typing import Any

import altair as alt
import numpy as np

from .runs import Run
from .style import (
    block_bars,
    block_width,
    chart,
    colors,
    number,
    panels,
    wrapped,
)
from .trajectories import spread_indices

SHOWN_BLOCKS = 3
"""Blocks whose points are shown at first, as many as in the paper."""


def attention_figure(
    run: Run, most_points: int = 1000, blocks: int | None = SHOWN_BLOCKS
) -> alt.ConcatChart:
    """Figure 9 of one run.

    Points of some blocks, the correlation over samples at every block, and
    the distribution of the correlations along trajectories.

    Args:
        run (Run): Its attention value varies.
        most_points (int): Samples shown at each block. Defaults to 1000.
        blocks (int, optional): Blocks in the legend, of which a click shows
            another than the first three. None is all. Defaults to 3.
    """
    recorded = run.trajectories
    width = block_width(recorded.blocks)
    over_samples = recorded.block_correlations(run.reading)
    rows = spread_indices(len(run.nsi), most_points)
    at = recorded.adaptive_blocks[:blocks]
    labels = [f'{recorded.blocks[k]}  r = {over_samples[k]:.2f}' for k in at]
    first: Any = [dict(block=label) for label in labels[:SHOWN_BLOCKS]]
    chosen = alt.selection_point(fields=['block'], bind='legend', value=first)
    points = (
        chart(
            step=recorded.step_mean[rows][:, at].T.ravel(),
            nsi=run.nsi[rows][:, at].T.ravel(),
            sample=np.tile(rows, len(at)),
            block=np.repeat(labels, len(rows)),
        )
        .mark_point(filled=True, size=14, opacity=0.6)
        .encode(
            alt.X(
                'step:Q',
                title='attention value (mean over C, H, W)',
                scale=alt.Scale(zero=False),
            ),
            alt.Y(
                'nsi:Q',
                title=f'NSI ({run.reading})',
                scale=alt.Scale(zero=False),
            ),
            alt.Color('block:N', scale=colors(labels)),
            tooltip=[
                'block:N',
                'sample:N',
                number('step', 'attention value'),
                number('nsi', 'NSI'),
            ],
        )
        .add_params(chosen)
        .transform_filter(chosen)
        .properties(title=wrapped(run.label), width=width, height=260)
    )
    bars = block_bars(
        'over samples, block by block',
        recorded.blocks,
        {
            recorded.blocks[k]: float(over_samples[k])
            for k in np.flatnonzero(~np.isnan(over_samples))
        },
        "Pearson's r",
    )
    along = recorded.trajectory_correlations(run.reading)
    edges = np.linspace(-1, 1, 41)
    histogram = (
        chart(
            r=np.tile((edges[:-1] + edges[1:]) / 2, len(along)),
            # Binned here: a page need not carry a value a sample.
            share=np.ravel(
                [
                    np.histogram(values, edges)[0] / len(values)
                    for values in along.values()
                ]
            ),
            stage=np.repeat([*along], 40),
        )
        .mark_area(interpolate='step', opacity=0.25, line=True)
        .encode(
            alt.X('r:Q', title="Pearson's r", scale=alt.Scale(domain=[-1, 1])),
            alt.Y('share:Q', title='share of samples', stack=None),
            alt.Color('stage:N', scale=colors([*along])),
            tooltip=[
                'stage:N',
                number('r', 'r'),
                number('share', 'share of samples'),
            ],
        )
        .properties(title='along trajectories', width=width, height=150)
    )
    shown = [points, bars] + [histogram] * bool(along)
    return panels(shown, labels, columns=1, name=run.label).resolve_scale(
        color='independent'
    )
