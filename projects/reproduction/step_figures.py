"""Where the gates of a network stand while it is trained."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from projects.drawing import HEAT, paper_figure, short

from .seed_figures import Curve, draw_lines


def draw_steps(rows: Mapping[str, Curve], stages: Sequence[int],
               quantity: str, curves: Mapping[str, Curve]) -> Figure:
    """Draw Δt by block and epoch, a panel a row, and a metric beside it.

    Args:
        rows (Mapping): For each row its epochs (E,) and the attention values
            of its L blocks, (E, L), by its label.
        stages (Sequence[int]): Of the blocks, (L,).
        quantity (str): The metric.
        curves (Mapping): Its curves, also of rows without attention values:
            a plain network is the one whose Δt is 1.
    """
    figure, axes = paper_figure(len(rows) + 1, 1, 2.5, 2.8)
    low = min(steps.min() for _, steps in rows.values())
    high = max(steps.max() for _, steps in rows.values())
    for ax, (label, (epochs, steps)) in zip(axes, rows.items()):
        heat = ax.imshow(steps.T, cmap=HEAT, vmin=low, vmax=high,
                         aspect='auto', interpolation='nearest')
        for border in np.flatnonzero(np.diff(stages)):
            ax.axhline(border + 0.5, color='white', linewidth=1)
        ax.set_xticks(range(len(epochs)), epochs)
        ax.grid(False)
        ax.set_title(short(label), fontsize=8)
        ax.set_xlabel('epoch')
    axes[0].set_ylabel('block, from the input down')
    figure.colorbar(heat, ax=axes[:len(rows)], label='Δt, mean over images')
    draw_lines(axes[-1], quantity, curves, list(curves))
    figure.legend(loc='outside right center', fontsize=6.5, frameon=False)
    return figure
