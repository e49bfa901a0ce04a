"""TNS and the NSI of each block over the checkpoints of a training."""

import matplotlib.figure
import plotly.graph_objects as go
from matplotlib.figure import Figure
from plotly.subplots import make_subplots

from mmstepnet.stiffness.training import Training

from .style import COLORS, HEAT, PAGE_LAYOUT, plain, short

UNITS = {'epoch': 'epoch', 'iter': 'iteration', 'weights': 'weights'}


def draw_training(name: str, training: Training) -> matplotlib.figure.Figure:
    """Draw TNS with its interval, and a heat map of NSI, for a paper."""
    shown, blocks = training.checkpoints, training.blocks
    at = range(len(shown))
    # A heat map that is higher than a page does not name each row.
    every = -(-len(blocks) // 60)
    height = 0.13 * min(len(blocks), 60) + 0.5
    figure = Figure(figsize=(6.0, 2.6 + height))
    top, below = figure.subplots(2, sharex=True, height_ratios=(1.5, height))
    top.fill_between(at, [c.low for c in shown], [c.high for c in shown],
                     color=COLORS[0], alpha=0.18, lw=0)
    top.plot(at, [c.tns for c in shown], color=COLORS[0], marker='.')
    top.set_ylim(bottom=0)
    top.set_ylabel(f'TNS ({training.reading})')
    top.set_title(short(name, 72))
    image = below.imshow(
        [[c.nsi[i] for c in shown] for i in range(len(blocks))],
        aspect='auto', cmap=HEAT, vmin=0)
    below.set_yticks(range(0, len(blocks), every), [
        short(block, 32) for block in blocks[::every]], fontsize=6)
    most = 3 if training.unit == 'weights' else 12
    few = range(0, len(shown), -(-len(shown) // most))
    below.set_xticks(few, [short(str(shown[i].step), 12) for i in few])
    below.set_xlabel(UNITS[training.unit])
    below.grid(False)
    figure.colorbar(image, ax=below, label='mean NSI')
    return figure


def training_figure(training: Training) -> go.Figure:
    """The same, interactive."""
    shown, blocks = training.checkpoints, training.blocks
    heights = 180, 14 * len(blocks) + 60
    figure = make_subplots(2, 1, shared_xaxes=True, row_heights=heights,
                           vertical_spacing=30 / sum(heights))
    at = [plain(str(c.step)) for c in shown]
    for ends, fill in (([c.high for c in shown], None),
                       ([c.low for c in shown], 'tonexty')):
        figure.add_scatter(x=at, y=ends, mode='lines', line_width=0,
                           fill=fill, fillcolor='rgba(47, 95, 208, 0.16)',
                           hoverinfo='skip')
    figure.add_scatter(
        x=at, y=[c.tns for c in shown], mode='lines+markers',
        line_color=COLORS[0], customdata=[(c.low, c.high) for c in shown],
        hovertemplate='TNS %{y:.4f}<br>95 %: %{customdata[0]:.4f} to '
        '%{customdata[1]:.4f}<extra></extra>')
    figure.add_heatmap(
        x=at, y=list(map(plain, blocks)),
        z=[[float(c.nsi[i]) for c in shown] for i in range(len(blocks))],
        zmin=0, zmax=max(float(c.nsi.max()) for c in shown), colorscale=HEAT,
        colorbar=dict(title='mean NSI', thickness=14, y=0, yanchor='bottom',
                      len=heights[1] / sum(heights)),
        hovertemplate='%{y}<br>mean NSI %{z:.4f}<extra></extra>',
        row=2, col=1)
    figure.update_xaxes(type='category')
    figure.update_xaxes(title=UNITS[training.unit], row=2)
    figure.update_yaxes(
        title=f'TNS ({training.reading})', rangemode='tozero', row=1)
    figure.update_yaxes(autorange='reversed', automargin=True, row=2)
    return figure.update_layout(
        PAGE_LAYOUT, height=sum(heights) + 120, showlegend=False)
