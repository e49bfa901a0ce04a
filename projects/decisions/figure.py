"""A picture of the three questions, from the rows that are here.

``python -m projects.decisions.figure`` writes ``decisions.png``.
"""

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes

from projects.drawing import (
    PAPER_STYLE,
    grid_figure,
    line_style,
)
from projects.recipes.rows import read

from . import digits, placement

DEPTHS = 8, 14, 20, 32


def draw_placement(ax: Axes, rows: list[list[str]]) -> None:
    """Each seed's loss minus that of random blocks."""
    loss = {tuple(row[:3]): float(row[4]) for row in rows}
    seeds = sorted({row[0] for row in rows})
    for i, network in enumerate(placement.NETWORKS):
        for k, choice in enumerate(placement.CHOICES[:2]):
            ax.plot(np.full(len(seeds), i) + (k - 0.5) / 3,
                    [loss[seed, network, choice]
                     - loss[seed, network, 'random'] for seed in seeds],
                    '.', color=line_style(k)[0], ms=6, label=choice)
    ax.axhline(0, color='black', lw=0.8)
    ax.set_xticks(range(len(placement.NETWORKS)), placement.NETWORKS)
    ax.set(ylabel='cross-entropy minus random', title='where steps go',
           xlim=(-0.5, 2.5), ylim=(-0.045, 0.065))
    ax.legend(*(found[:2] for found in ax.get_legend_handles_labels()),
              loc='upper left')


def draw_alarm(ax: Axes, rows: list[list[str]]) -> None:
    """Diverging runs that a quantity has warned of, over iterations."""
    # Nothing at all if undefined values count, as it was planned.
    _, held = digits.first_warnings(rows, left_out=True)
    at = np.arange(0, digits.ITERATIONS + 1, digits.EVERY)
    for i, name in enumerate(digits.QUANTITIES):
        first = np.array([found[name] for bad, found in held if bad])
        ax.step(at, [(first <= k).mean() for k in at], where='post',
                color=line_style(i)[0], label=name)
    ax.set(xlabel='iteration', ylabel='diverging runs warned of',
           ylim=(0, 1.6), title='an alarm')
    ax.set_yticks([0, 0.25, 0.5, 0.75, 1])
    ax.legend(loc='upper left')


def draw_architectures(ax: Axes, rows: list[list[str]]) -> None:
    """Test loss against TNS after one epoch, a point a network."""
    names, values = digits.over_seeds(rows)
    for i, depth in enumerate(DEPTHS):
        own = values[[int(name[0]) == depth for name in names]]
        ax.plot(own[:, 1], own[:, 7], '.', color=line_style(i)[0], ms=6,
                label=f'depth {depth}')
    ax.set(xlabel='TNS after one epoch', ylabel='test loss', yscale='log',
           title='architectures')
    ax.yaxis.set_major_formatter('{x:g}')
    ax.yaxis.set_minor_formatter('')
    ax.legend(loc='lower right')


def main() -> None:
    """Write the figure."""
    folder = digits.FOLDER
    with rc_context(PAPER_STYLE):
        figure, axes = grid_figure(3, 3, 3.2, 2.6)
        for ax, draw, name in zip(
                axes, (draw_placement, draw_alarm, draw_architectures),
                ('placement', 'alarm', 'architectures')):
            draw(ax, read(folder / f'{name}.tsv'))
        figure.savefig(folder / 'decisions.png')


if __name__ == '__main__':
    main()
