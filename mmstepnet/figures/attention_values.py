"""NSI against attention value, Figure 9 of the paper."""

import matplotlib.figure
import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from .runs import Run
from .style import COLORS, PAGE_LAYOUT, line_style, paper_figure, plain, short
from .trajectories import spread_indices

SHOWN_BLOCKS = 3
"""Blocks whose points are shown at first, as many as in the paper."""


def draw_attention(run: Run) -> matplotlib.figure.Figure:
    """Draw Figure 9 of one run for a paper.

    Points of up to three blocks, the correlation over samples at every
    block, and the distribution of the correlations along trajectories.
    """
    trajectories = run.trajectories
    blocks = trajectories.adaptive_blocks[:SHOWN_BLOCKS]
    figure, axes = paper_figure(len(blocks) + 2, 1, 2.3, 2.3)
    rows = spread_indices(len(run.nsi), 1000)
    over_samples = trajectories.block_correlations(run.reading)
    along = trajectories.trajectory_correlations(run.reading)
    for ax, block in zip(axes, blocks):
        ax.scatter(
            trajectories.step_mean[rows, block], run.nsi[rows, block], s=3,
            alpha=0.5, lw=0, color=COLORS[0])
        # Values that differ in their last digits have long labels.
        ends = np.quantile(trajectories.step_mean[rows, block], (0, 1))
        ax.set_xticks(ends, [f'{end:.6g}' for end in ends])
        ax.set(title=f'{short(trajectories.blocks[block], 24)}\n'
               f'{_coefficient(over_samples[block])}',
               xlabel='attention value', ylabel=f'NSI ({run.reading})')
    axes[-2].bar(
        np.arange(1, len(over_samples) + 1), over_samples, color=COLORS[0])
    axes[-2].set(title='over samples, block by block',
                 xlabel='recorded block', ylabel='correlation',
                 ylim=(-1.05, 1.05))
    bins = np.linspace(-1, 1, 41).tolist()
    for i, (name, values) in enumerate(along.items()):
        axes[-1].hist(
            values, bins, weights=np.full(len(values), 1 / len(values)),
            histtype='step', color=COLORS[i % len(COLORS)], label=name)
    axes[-1].set(title='along trajectories', xlabel='correlation',
                 ylabel='share of samples')
    if axes[-1].patches:
        axes[-1].legend(loc='upper left', bbox_to_anchor=(1, 1))
    figure.suptitle(short(run.label, 60), fontsize=9)
    return figure


def attention_figure(run: Run, most_points: int) -> go.Figure:
    """Interactive Figure 9 of one run.

    Args:
        run (Run): Its attention value varies.
        most_points (int): Samples shown at each block.
    """
    figure = make_subplots(
        2,
        2,
        specs=[[dict(colspan=2), None], [{}, {}]],
        row_heights=(0.56, 0.44),
        vertical_spacing=0.15,
        horizontal_spacing=0.2,
        subplot_titles=('a · samples, block by block',
                        'b · at each block',
                        'c · along trajectories'))
    rows = spread_indices(len(run.nsi), most_points)
    trajectories = run.trajectories
    blocks = trajectories.adaptive_blocks
    over_samples = trajectories.block_correlations(run.reading)
    along = trajectories.trajectory_correlations(run.reading)
    figure.add_traces([
        go.Scatter(
            x=trajectories.step_mean[rows, block],
            y=run.nsi[rows, block],
            mode='markers',
            marker=dict(size=5, opacity=0.65, color=line_style(i)[0]),
            name=plain(f'{trajectories.blocks[block]}  '
                       f'{_coefficient(over_samples[block])}'),
            visible=True if i < SHOWN_BLOCKS else 'legendonly',
            hovertemplate='attention value %{x:.4f}<br>NSI %{y:.4f}')
        for i, block in enumerate(blocks)
    ])
    figure.add_bar(
        x=np.arange(1, len(over_samples) + 1), y=over_samples,
        marker_color=COLORS[0], showlegend=False, text=trajectories.blocks,
        textposition='none',
        hovertemplate='%{text}<br>r = %{y:.3f}<extra></extra>', row=2, col=1)
    edges = np.linspace(-1, 1, 41)
    for i, (name, values) in enumerate(along.items()):
        # Binned here: the page need not carry a value a sample.
        share = np.histogram(values, edges)[0] / len(values)
        figure.add_bar(
            x=(edges[:-1] + edges[1:]) / 2, y=share, width=edges[1] - edges[0],
            marker=dict(color=COLORS[i % len(COLORS)], line_width=0),
            opacity=0.55, name=f'along {name}', legend='legend2',
            hovertemplate='r = %{x:.3f}<br>share of samples %{y:.3f}', row=2,
            col=2)
    figure.update_xaxes(title='attention value (mean over C, H, W)', row=1)
    figure.update_yaxes(title=f'NSI ({run.reading})', row=1)
    figure.update_xaxes(title='recorded block', row=2, col=1)
    figure.update_yaxes(
        title="Pearson's r", range=(-1.05, 1.05), row=2, col=1)
    figure.update_xaxes(
        title="Pearson's r", range=(-1.05, 1.05), row=2, col=2)
    figure.update_yaxes(title='share of samples', row=2, col=2)
    return figure.update_layout(
        PAGE_LAYOUT, height=760, barmode='overlay',
        legend=dict(y=1, yanchor='top', maxheight=0.5),
        legend2=dict(y=0.38, yanchor='top'))


def _coefficient(value: float) -> str:
    return 'r not defined' if np.isnan(value) else f'r = {value:.2f}'
