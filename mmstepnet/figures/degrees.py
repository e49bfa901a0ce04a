"""Stiffness over all degrees M = (M1, M2), Figures 2 and 6 of the paper."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import matplotlib.figure
import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from mmstepnet.stiffness import (
    degree_axes,
    stiffness_occurrence,
    stiffness_proportion,
)

from .runs import Run
from .style import HEAT, PAGE_LAYOUT, grid_figure, grid_shape, plain, short


class Measure(NamedTuple):
    """What is plotted over M, and its integral over all M."""

    symbol: str
    values: Callable
    integral_symbol: str
    integral: Callable[[Run], float]
    none: str


OCCURRENCE = Measure('δ(M)', stiffness_occurrence, 'TNS', lambda run: run.tns,
                     'no sample is stiff')
"""Share of samples that are stiff to degree M, Figure 2."""

PROPORTION = Measure('p̂(M)', stiffness_proportion, '∬p̂',
                     lambda run: run.proportion, 'no block is stiff')
"""Mean share of stiff blocks, Figure 6."""


def draw_degrees(runs: Sequence[Run],
                 measure: Measure) -> matplotlib.figure.Figure:
    """Draw a heat map a run for a paper."""
    m1, m2, grids = _grids(runs, measure)
    figure, axes = grid_figure(len(runs), 4, 2.2, 1.9)
    extent = (0, m1[0] + m1[-1], 0, m2[0] + m2[-1])
    for ax, run, grid in zip(axes, runs, grids):
        image = ax.imshow(
            grid.T, origin='lower', aspect='auto', extent=extent, cmap=HEAT,
            vmin=0, vmax=_top(grids))
        ax.set_title(f'{short(run.label, 24)}\n{_integral(run, measure)}')
        if not measure.integral(run):
            ax.text(0.5, 0.5, measure.none, color='white', ha='center',
                    fontsize=6.5, transform=ax.transAxes)
        ax.set_xlabel('$M_1$', parse_math=True)
        ax.set_ylabel('$M_2$', parse_math=True)
        ax.grid(False)
    figure.colorbar(image, ax=axes, label=measure.symbol)
    return figure


def degrees_figure(runs: Sequence[Run], measure: Measure) -> go.Figure:
    """Interactive heat maps, one a run, on common axes and colours."""
    m1, m2, grids = _grids(runs, measure)
    columns, rows = grid_shape(len(runs), columns=3)
    height = 110 + 235 * rows
    figure = make_subplots(
        rows,
        columns,
        shared_xaxes='all',
        shared_yaxes='all',
        horizontal_spacing=0.12 / columns,
        vertical_spacing=min(75 / height, 0.9 / rows),
        subplot_titles=[
            f'{plain(short(run.label))}<br><i>{_integral(run, measure)}</i>'
            for run in runs
        ])
    for i, (run, grid) in enumerate(zip(runs, grids)):
        row, column = divmod(i, columns)
        figure.add_heatmap(
            x=m1.astype(np.float32),
            y=m2.astype(np.float32),
            z=grid.T.astype(np.float32),
            coloraxis='coloraxis',
            name=plain(run.label),
            hovertemplate=f'M1 %{{x:.3f}}<br>M2 %{{y:.3f}}<br>'
            f'{measure.symbol} %{{z:.4f}}',
            row=row + 1,
            col=column + 1)
        if not measure.integral(run):
            figure.add_annotation(
                x=m1[len(m1) // 2], y=m2[len(m2) // 2], text=measure.none,
                font_color='white', showarrow=False, row=row + 1,
                col=column + 1)
        # Shared axes label only the outer ones; the last row may be short.
        figure.update_xaxes(
            showticklabels=True,
            title_text='M<sub>1</sub>' if i + columns >= len(runs) else None,
            title_standoff=4, row=row + 1, col=column + 1)
    figure.update_yaxes(title_text='M<sub>2</sub>', title_standoff=4, col=1)
    figure.update_annotations(font_size=12)
    return figure.update_layout(
        PAGE_LAYOUT,
        height=height,
        margin_t=70,
        coloraxis=dict(
            colorscale=HEAT, cmin=0, cmax=_top(grids),
            colorbar=dict(title=measure.symbol, thickness=14)))


def _integral(run: Run, measure: Measure) -> str:
    return (f'{measure.integral_symbol} ({run.reading}) = '
            f'{measure.integral(run):.3g}')


def _grids(
        runs: Sequence[Run], measure: Measure
) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Common axes M1 and M2, and the measure of each run on them."""
    shown = [(run.nsi, run.trajectories.stages) for run in runs]
    m1, m2 = degree_axes(shown)
    return m1, m2, [measure.values(*s, m1, m2) for s in shown]


def _top(grids: list[np.ndarray]) -> float:
    """Upper end of the colours; all zero is the lower end of them."""
    return max(grid.max() for grid in grids) or 1.0
