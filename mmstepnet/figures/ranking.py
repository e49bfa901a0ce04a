"""Accuracy against TNS over runs, Figure 7 of the paper."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import matplotlib.figure
import numpy as np
import plotly.graph_objects as go
from scipy.stats import (
    kendalltau,
    permutation_test,
    rankdata,
    spearmanr,
)

from .runs import Run
from .style import PAGE_LAYOUT, line_style, paper_figure, plain, short


class RankCorrelation(NamedTuple):
    """Rank correlations between TNS and accuracy, with their p-values."""

    kendall: float
    kendall_p: float
    spearman: float
    spearman_p: float

    def __str__(self):
        return (f'Kendall τ = {self.kendall:.3f} (p = {self.kendall_p:.2g}), '
                f'Spearman ρ = {self.spearman:.3f} '
                f'(p = {self.spearman_p:.2g})')


def rank_correlation(runs: Sequence[Run]) -> RankCorrelation | str:
    """Rank runs of one metric by TNS and by accuracy.

    Args:
        runs (Sequence[Run]): Runs with an accuracy, all of one metric.

    Returns:
        RankCorrelation | str: See :func:`correlate_ranks`.
    """
    return correlate_ranks([run.tns for run in runs],
                           [run.accuracy.value for run in runs], 'runs')


def correlate_ranks(tns: Sequence[float], accuracy: Sequence[float],
                    what: str) -> RankCorrelation | str:
    """Rank runs or models by TNS and by accuracy.

    Args:
        tns (Sequence[float]): TNS of each.
        accuracy (Sequence[float]): Accuracy of each.
        what (str): What they are, for the message.

    Returns:
        RankCorrelation | str: Kendall's tau-b and Spearman's rho; where they
        are not defined, why.
    """
    if len(tns) < 3:
        return (f'Kendall and Spearman need at least 3 {what} with an '
                f'accuracy, here {len(tns)}')
    for name, values in (('TNS', tns), ('accuracy', accuracy)):
        if len(set(values)) == 1:
            return (f'Kendall and Spearman are not defined: all {what} have '
                    f'{name} {values[0]:.4g}')
    # The p-values of SciPy are those of many runs without ties.
    ranks, signs = rankdata(accuracy), _order_of_pairs(np.array(accuracy))
    return RankCorrelation(
        kendalltau(tns, accuracy).statistic,
        _permuted(tns, lambda x: _order_of_pairs(x) @ signs),
        spearmanr(tns, accuracy).statistic,
        _permuted(rankdata(tns), lambda x: x @ ranks))


def _order_of_pairs(values: np.ndarray) -> np.ndarray:
    """Sign of each difference of two, (..., n) to (..., n (n - 1) / 2)."""
    i, j = np.triu_indices(values.shape[-1], 1)
    return np.sign(values[..., i] - values[..., j])


def _permuted(values: Sequence[float], statistic: Callable) -> float:
    """p-value, two-sided, of a statistic that grows with the correlation.

    All orders of up to 7 runs are tried, of more a fixed sample.
    """
    return permutation_test((values, ),
                            lambda x, axis: statistic(x),
                            permutation_type='pairings',
                            vectorized=True,
                            n_resamples=9999,
                            batch=100,  # of n (n - 1) / 2 pairs each
                            random_state=0).pvalue


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
    for ax, (name, runs) in zip(axes, groups.items()):
        for i, (label, members) in enumerate(_by_label(runs).items()):
            ax.scatter([run.tns for run in members],
                       [run.accuracy.value for run in members],
                       color=line_style(i)[0],
                       marker='oD^'[i // 10 % 3],
                       s=26,
                       label=short(label))
        ax.set_title(str(rank_correlation(runs)), fontsize=8)
        ax.set_xlabel('TNS')
        ax.set_ylabel(name)
        ax.legend(loc='center left', bbox_to_anchor=(1, 0.5))
    return figure


def ranking_figure(name: str, runs: Sequence[Run]) -> go.Figure:
    """Interactive Figure 7 for the runs of one metric."""
    figure = go.Figure()
    for i, (label, members) in enumerate(_by_label(runs).items()):
        figure.add_scatter(
            x=[run.tns for run in members],
            y=[run.accuracy.value for run in members],
            mode='markers',
            marker=dict(
                size=12,
                color=line_style(i)[0],
                symbol=('circle', 'diamond', 'triangle-up')[i // 10 % 3],
                line=dict(width=1, color='white')),
            name=plain(short(label, 40)),
            text=[plain(f'{run.label}, {run.accuracy.where}')
                  for run in members],
            hovertemplate='%{text}<br>TNS %{x:.4f}<br>accuracy %{y:.4f}'
            '<extra></extra>')
    figure.update_xaxes(title='TNS')
    figure.update_yaxes(title=plain(name))
    return figure.update_layout(
        PAGE_LAYOUT,
        height=440,
        showlegend=True,
        title=dict(text=str(rank_correlation(runs)), font_size=14))


def _by_label(runs: Sequence[Run]) -> dict[str, list[Run]]:
    groups = {}
    for run in runs:
        groups.setdefault(run.model, []).append(run)
    return groups
