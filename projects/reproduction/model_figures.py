"""Models of one table beside each other: accuracy, and accuracy over TNS."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from projects.drawing import COLORS, line_style, paper_figure, short


def draw_rows(quantity: str, rows: Mapping[str, np.ndarray]) -> Figure:
    """Draw a line of points a row, a point a seed, their mean as a bar.

    Args:
        quantity (str): What is drawn.
        rows (Mapping): Values (S,) of the rows by their labels; the first
            row's mean is drawn through all.
    """
    figure, (ax, ) = paper_figure(1, 1, 5.2, 0.24 * len(rows) + 0.8)
    ax.axvline(np.mean(next(iter(rows.values()))), color='#9aa4b2',
               linewidth=1)
    for place, values in enumerate(rows.values()):
        ax.scatter(values, np.full(len(values), place), s=10,
                   color=COLORS[0], alpha=0.7)
        ax.vlines(np.mean(values), place - 0.3, place + 0.3,
                  color=COLORS[1], linewidth=1.5)
    ax.set_yticks(range(len(rows)),
                  [f'{short(r, 40)} ({len(v)})' for r, v in rows.items()])
    ax.invert_yaxis()
    ax.set_xlabel(f'{quantity}\npoints: seeds, bars: means')
    return figure


def draw_stiffness(models: Mapping[str, tuple[float, float]],
                   title: str) -> Figure:
    """Draw accuracy over TNS, a point a model (Fig. 7).

    Args:
        models (Mapping): TNS and accuracy (%) by the models' labels.
        title (str): Of the figure.
    """
    figure, (ax, ) = paper_figure(1, 1, 5.2, 3.2)
    for i, (label, (tns, accuracy)) in enumerate(models.items()):
        ax.scatter(tns, accuracy, s=26, color=line_style(i)[0],
                   marker='oD^'[i // len(COLORS) % 3], label=short(label))
    ax.set_title(title, fontsize=8)
    ax.set(xlabel='TNS', ylabel='Accuracy (%)')
    ax.legend(loc='center left', bbox_to_anchor=(1, 0.5))
    return figure
