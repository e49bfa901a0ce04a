"""Curves over the epochs and violins over the seeds, for tables of runs.

Figures 3 to 5 of "Towards understanding how attention mechanism works in deep
learning".
"""

from collections.abc import Mapping, Sequence
from textwrap import fill

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from projects.drawing import (
    line_style,
    paper_figure,
    paper_line,
    short,
)

LETTER = 0.08
"""Width of a label's letter in inches, about."""

Curve = tuple[np.ndarray, np.ndarray]
"""Epochs (E,) and values (S, E) of S seeds."""


def draw_curves(panels: Mapping[str, Mapping[str, Curve]]) -> Figure:
    """Draw the mean over the seeds, with a band of a standard deviation.

    Args:
        panels (Mapping): For each quantity, a panel, the curves of the rows
            by their labels.
    """
    figure, axes = paper_figure(len(panels), 1, 3.4, 2.6)
    labels = list(dict.fromkeys(r for rows in panels.values() for r in rows))
    for ax, (quantity, rows) in zip(axes, panels.items()):
        draw_lines(ax, quantity, rows, labels)
    lines = {line.get_label(): line for ax in axes for line in ax.lines}
    wide = LETTER * max(map(len, lines)) + 0.5  # with its line
    figure.legend(
        lines.values(), lines.keys(), frameon=False,
        loc='outside upper center',
        ncols=max(1, min(len(labels), 4, int(figure.get_figwidth() / wide))),
        title='mean ± std (seeds)')
    return figure


def draw_lines(ax: Axes, quantity: str, rows: Mapping[str, Curve],
               labels: Sequence[str]) -> None:
    """Draw the curves of one quantity.

    The axis is logarithmic where the means are a hundredfold apart.

    Args:
        ax (Axes): Where.
        quantity (str): What they are of.
        rows (Mapping): The curves by the labels of their rows.
        labels (Sequence[str]): All labels of the figure, which choose the
            styles of the lines.
    """
    for label, (epochs, values) in rows.items():
        style = paper_line(labels.index(label))
        mean = values.mean(0)
        ax.plot(epochs, mean, **style, linewidth=1.2,
                label=f'{short(label)} ({len(values)})')
        if len(values) > 1:
            std = values.std(0, ddof=1)
            ax.fill_between(epochs, mean - std, mean + std,
                            color=style['color'], alpha=0.18, linewidth=0)
    means = np.concatenate([values.mean(0) for _, values in rows.values()])
    # A run that fails would press all others onto the axis.
    if 0 < 100 * means.min() < means.max():
        ax.set_yscale('log')
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel('epoch')
    ax.set_ylabel(fill(quantity, 26))


def draw_violins(quantity: str, rows: Mapping[str, np.ndarray]) -> Figure:
    """Draw the distribution over the seeds, each seed a point.

    Args:
        quantity (str): What is drawn.
        rows (Mapping): Values (S,) of the rows by their labels.
    """
    figure, (ax, ) = paper_figure(1, 1, max(2.4, 0.9 * len(rows) + 1), 2.8)
    for place, values in enumerate(rows.values()):
        color, _ = line_style(place)
        # A single value has no density.
        if len(values) > 1:
            violin = ax.violinplot(
                values, [place], widths=0.8, showextrema=False)
            for body in violin['bodies']:
                body.set(facecolor=color, edgecolor=color, alpha=0.3)
        ax.scatter(np.full(len(values), place), values, s=9, color=color)
        ax.hlines(np.mean(values), place - 0.25, place + 0.25, color=color,
                  linewidth=1.5)
    labels = [f'{short(row)}\n({len(values)} '
              f'{"seed" if len(values) == 1 else "seeds"})'
              for row, values in rows.items()]
    ax.set_xticks(range(len(rows)), labels)
    wide = LETTER * max(len(short(row)) for row in rows)
    if wide * len(rows) > figure.get_figwidth():
        ax.set_xticks(range(len(rows)), labels, rotation=40, ha='right')
    ax.grid(axis='x', visible=False)
    ax.set_ylabel(fill(quantity, 16))
    return figure
