"""Stiffness over all degrees M = (M1, M2), Figures 2 and 6 of the paper."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import altair as alt
import numpy as np

from mmstepnet.stiffness import (
    degree_axes,
    stiffness_occurrence,
    stiffness_proportion,
)

from .runs import Run
from .style import chart, heat, number, panels, wrapped

GROUND = '#440154'
"""The colour of 0."""


class Measure(NamedTuple):
    """A quantity that is plotted over M, and its integral over all M."""

    symbol: str
    values: Callable
    integral_symbol: str
    integral: Callable[[Run], float]
    none: str


OCCURRENCE = Measure(
    'δ(M)',
    stiffness_occurrence,
    'TNS',
    lambda run: run.tns,
    'no sample is stiff',
)
"""Share of samples that are stiff to degree M, Figure 2."""

PROPORTION = Measure(
    'p-hat(M)',  # not every font has a hat that stands over its letter
    stiffness_proportion,
    '∬p̂',
    lambda run: run.proportion,
    'no block is stiff',
)
"""Mean share of stiff blocks, Figure 6."""


def degrees_figure(runs: Sequence[Run], measure: Measure) -> alt.ConcatChart:
    """Heat maps, one a run, on common axes and colours."""
    shown = [(run.nsi, run.trajectories.stages) for run in runs]
    m1, m2 = degree_axes(shown)
    grids = [measure.values(*each, m1, m2) for each in shown]
    highest = max(grid.max() for grid in grids)
    axis = alt.Axis(grid=False, labelFlush=False)
    x, y = (
        channel(
            f'{column}:Q',
            title=title,
            axis=axis,
            scale=alt.Scale(domain=[0, m[0] + m[-1]], nice=False),
        )
        for channel, column, title, m in (
            (alt.X, 'left', 'M1', m1),
            (alt.Y, 'low', 'M2', m2),
        )
    )
    parts = []
    for run, grid in zip(runs, grids):
        # Cells of 0 are the ground of the map.
        i, j = np.nonzero(grid)
        wide, high = 2 * m1[0], 2 * m2[0]
        layers = [
            chart(i=i, j=j, value=grid[i, j])
            .transform_calculate(
                left=f'datum.i * {wide}',
                m1=f'(datum.i + 0.5) * {wide}',
                right=f'(datum.i + 1) * {wide}',
                low=f'datum.j * {high}',
                m2=f'(datum.j + 0.5) * {high}',
                high=f'(datum.j + 1) * {high}',
            )
            .mark_rect()
            .encode(
                x,
                alt.X2('right:Q'),
                y,
                alt.Y2('high:Q'),
                heat('value', measure.symbol, highest),
                tooltip=[
                    number('m1', 'M1'),
                    number('m2', 'M2'),
                    number('value', measure.symbol),
                ],
            )
        ]
        integral = measure.integral(run)
        if not integral:
            middle = len(m1) // 2
            layers.append(
                chart(left=[m1[middle]], low=[m2[middle]])
                .mark_text(text=measure.none, color='white')
                .encode(x, y)
            )
        parts.append(
            alt.layer(
                *layers, view=alt.ViewBackground(fill=GROUND)
            ).properties(
                title=[
                    *wrapped(run.label),
                    f'{measure.integral_symbol} ({run.reading}) = '
                    f'{integral:.3g}',
                ],
                width=240,
                height=160,
            )
        )
    return panels(parts).resolve_scale(color='shared')
