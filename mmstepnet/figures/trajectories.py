"""NSI along the blocks, Figures 3 and 10 of the paper."""

from collections.abc import Sequence

import matplotlib.figure
import numpy as np
import plotly.graph_objects as go
from matplotlib.axes import Axes

from mmstepnet.stiffness import Trajectories

from .runs import Run
from .style import (
    PAGE_LAYOUT,
    grid_figure,
    legend_below,
    line_style,
    paper_figure,
    paper_line,
    plain,
    short,
)

SAMPLES = 6
"""Single trajectories in Figure 3."""

NAME = 32
"""Letters of a block's name on paper; the middle of a longer one is left out.
"""


def stage_spans(stages: np.ndarray) -> list[tuple[int, int]]:
    """First and last position of each stage's blocks, counted from 1."""
    starts = np.flatnonzero(np.diff(stages, prepend=stages[0] - 1))
    ends = np.append(starts[1:], len(stages))
    return [(int(a) + 1, int(b)) for a, b in zip(starts, ends)]


def _stage_label(recorded: Trajectories, first: int, last: int) -> str:
    """Name of the stage of some blocks; its number where they are few."""
    name = recorded.stage_names[recorded.stages[first - 1]]
    wide = (last - first + 1) / len(recorded.blocks) > 0.12
    return name if wide else name.rpartition(' ')[2]


def spread_indices(count: int, most: int) -> np.ndarray:
    """At most ``most`` of ``count`` indices, evenly spread and ascending."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(int))


def draw_trajectories(runs: Sequence[Run]) -> matplotlib.figure.Figure:
    """Draw Figure 3 for a paper: one panel a run."""
    figure, axes = grid_figure(len(runs), 3, 3.2, 2.1 + _height(runs))
    for ax, run in zip(axes, runs):
        at = np.arange(1, run.nsi.shape[1] + 1)
        mean, low, high = run.trajectories.band(run.reading)
        _mark_stages(ax, run, 24)
        ax.fill_between(at, low, high, color='#2f5fd0', alpha=0.18, lw=0,
                        label='10–90 % of samples')
        for i in spread_indices(len(run.nsi), SAMPLES):
            ax.plot(at, run.nsi[i], color='#5b6b7b', lw=0.5, alpha=0.7,
                    label='single samples' if i == 0 else None)
        ax.plot(at, mean, color='#2f5fd0', lw=1.4, marker='.', ms=3,
                label='mean')
        # After the lines: a limit ends the scaling of the axis to them.
        ax.set_ylim(bottom=0)
        ax.set_title(short(run.label, 36), pad=12)
        ax.set(xlabel='recorded block', ylabel=f'NSI ({run.reading})')
    legend_below(figure, *axes[0].get_legend_handles_labels())
    return figure


def draw_overlay(runs: Sequence[Run],
                 title: str) -> matplotlib.figure.Figure:
    """Draw Figure 10 for a paper: runs of the same blocks in one panel."""
    # A few blocks fit the column of a page, or a phone.
    width = min(3.6 + 0.1 * runs[0].nsi.shape[1], 6.0)
    figure, (ax, ) = paper_figure(1, 1, width, 2.6 + _height(runs))
    _mark_stages(ax, runs[0], 50)
    for i, run in enumerate(runs):
        ax.plot(
            np.arange(1, run.nsi.shape[1] + 1), run.nsi.mean(0), lw=1.2,
            marker='.', ms=3, label=short(run.label), **paper_line(i))
    ax.set_ylim(bottom=0)
    ax.set_title(short(title, int(12 * width)), pad=12)
    ax.set(xlabel='recorded block',
           ylabel=f'NSI ({runs[0].reading}), mean over samples')
    legend_below(figure, *ax.get_legend_handles_labels())
    return figure


def trajectory_figure(run: Run) -> go.Figure:
    """Interactive Figure 3 of one run."""
    figure = go.Figure()
    mean, low, high = run.trajectories.band(run.reading)
    at = list(map(plain, run.trajectories.blocks))
    figure.add_scatter(
        x=at, y=high, mode='lines', line_width=0, showlegend=False,
        hoverinfo='skip')
    figure.add_scatter(
        x=at, y=low, mode='lines', line_width=0, fill='tonexty',
        fillcolor='rgba(47, 95, 208, 0.16)', name='10–90 % of samples',
        hoverinfo='skip')
    for n, i in enumerate(spread_indices(len(run.nsi), SAMPLES)):
        figure.add_scatter(
            x=at, y=run.nsi[i], mode='lines', line=dict(
                width=1, color='rgba(91, 107, 123, 0.55)'),
            name='single samples', legendgroup='single', showlegend=n == 0,
            hovertemplate=f'sample {i}<br>%{{x}}<br>NSI %{{y:.4f}}'
            '<extra></extra>')
    figure.add_scatter(
        x=at, y=mean, mode='lines+markers', line=dict(
            width=2.5, color='#2f5fd0'), marker_size=6, name='mean',
        hovertemplate='%{x}<br>mean NSI %{y:.4f}<extra></extra>')
    return _finish(figure, run, f'NSI ({run.reading})')


def overlay_figure(runs: Sequence[Run]) -> go.Figure:
    """Interactive Figure 10: mean NSI of runs with the same blocks."""
    figure = go.Figure()
    for i, run in enumerate(runs):
        color, dash = line_style(i)
        figure.add_scatter(
            x=list(map(plain, run.trajectories.blocks)), y=run.nsi.mean(0),
            mode='lines+markers', line=dict(width=2, color=color, dash=dash),
            marker_size=5, name=plain(short(run.label, 40)),
            hovertemplate='%{x}<br>mean NSI %{y:.4f}')
    return _finish(
        figure, runs[0], f'NSI ({runs[0].reading}), mean over samples')


def _height(runs: Sequence[Run]) -> float:
    """Inches that the names of blocks take, from top to bottom."""
    return 0.05 * max(min(len(block), NAME) for run in runs
                      for block in run.trajectories.blocks)


def _mark_stages(ax: Axes, run: Run, most: int) -> None:
    """Name the stages above, and at most so many blocks below."""
    recorded = run.trajectories
    for number, (first, last) in enumerate(stage_spans(recorded.stages), 1):
        ax.axvspan(first - 0.5, last + 0.5, lw=0,
                   color='#f1f4f9' if number % 2 else 'white')
        ax.text((first + last) / 2, 1.01,
                _stage_label(recorded, first, last), ha='center',
                va='bottom', fontsize=7, color='#5b6b7b',
                transform=ax.get_xaxis_transform())
    ax.set_xlim(0.5, len(recorded.blocks) + 0.5)
    every = -(-len(recorded.blocks) // most)
    ax.set_xticks(range(1, len(recorded.blocks) + 1, every),
                  [short(block, NAME) for block in recorded.blocks[::every]],
                  rotation=90, fontsize=6)


def _finish(figure: go.Figure, run: Run, title: str) -> go.Figure:
    recorded = run.trajectories
    for number, (first, last) in enumerate(stage_spans(recorded.stages), 1):
        figure.add_vrect(
            x0=first - 1.5,
            x1=last - 0.5,
            layer='below',
            line_width=0,
            fillcolor='#f1f4f9' if number % 2 else 'white',
            annotation=dict(
                text=_stage_label(recorded, first, last),
                y=1,
                yanchor='bottom',
                font_color='#5b6b7b'),
            annotation_position='top')
    figure.update_xaxes(
        title='recorded block', type='category',
        range=(-0.5, len(recorded.blocks) - 0.5), tickangle=-90,
        tickfont_size=11, automargin=True, showgrid=False)
    figure.update_yaxes(title=title, rangemode='tozero')
    return figure.update_layout(
        PAGE_LAYOUT, legend=dict(traceorder='normal'),
        height=400 + 7 * max(map(len, recorded.blocks)))
