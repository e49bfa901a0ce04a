"""Accuracy against TNS over runs, Figure 7 of the paper."""

from collections.abc import Sequence

import matplotlib.figure
import plotly.graph_objects as go

from mmstepnet.stiffness import RankCorrelation, correlate_ranks

from .runs import Run, by_model
from .style import (
    PAGE_LAYOUT,
    legend_below,
    line_style,
    paper_figure,
    plain,
    short,
)


def rank_correlation(runs: Sequence[Run]) -> RankCorrelation | str:
    """Rank runs of one metric by TNS and by accuracy.

    Args:
        runs (Sequence[Run]): Runs with an accuracy, all of one metric.

    Returns:
        RankCorrelation | str: See :func:`correlate_ranks`.
    """
    return correlate_ranks([run.tns for run in runs],
                           [run.known_accuracy.value for run in runs], 'runs')


def runs_by_metric(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs whose accuracies may be compared: one metric, one data.

    Runs without an accuracy are left out.
    """
    groups = {}
    for run in runs:
        if run.accuracy is not None:
            groups.setdefault(run.comparison, []).append(run)
    return groups


def draw_ranking(groups: dict[str, list[Run]]) -> matplotlib.figure.Figure:
    """Draw Figure 7 for a paper, one panel a metric."""
    figure, axes = paper_figure(1, len(groups), 4.8, 3.2)
    shown = {}
    for ax, (name, runs) in zip(axes, groups.items()):
        for label, members in by_model(runs).items():
            i = list(shown).index(label) if label in shown else len(shown)
            shown[label] = ax.scatter(
                [run.tns for run in members],
                [run.known_accuracy.value for run in members],
                color=line_style(i)[0], marker='oD^'[i // 10 % 3], s=26)
        ax.set_title(f'{short(name, 60)}\n{rank_correlation(runs)}',
                     fontsize=8)
        ax.set_xlabel(f'TNS ({runs[0].reading})')
        ax.set_ylabel(runs[0].known_accuracy.metric)
    legend_below(figure, list(shown.values()), [*map(short, shown)])
    return figure


def ranking_figure(runs: Sequence[Run]) -> go.Figure:
    """Interactive Figure 7 for the runs of one metric."""
    figure = go.Figure()
    for i, (label, members) in enumerate(by_model(runs).items()):
        figure.add_scatter(
            x=[run.tns for run in members],
            y=[run.known_accuracy.value for run in members],
            mode='markers',
            marker=dict(
                size=12, color=line_style(i)[0],
                symbol=('circle', 'diamond', 'triangle-up')[i // 10 % 3],
                line=dict(width=1, color='white')),
            name=plain(short(label, 40)),
            text=[plain(f'{run.label}, {run.known_accuracy.where}')
                  for run in members],
            hovertemplate='%{text}<br>TNS %{x:.4f}<br>accuracy %{y:.4f}'
            '<extra></extra>')
    figure.update_xaxes(title=f'TNS ({runs[0].reading})')
    figure.update_yaxes(title=plain(runs[0].known_accuracy.metric))
    return figure.update_layout(
        PAGE_LAYOUT, height=440, showlegend=True,
        title=dict(text=str(rank_correlation(runs)), font_size=14))
