"""What the pictures of all projects share. Needs matplotlib."""

from math import ceil
from typing import Any

from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mmstepnet.figures.style import COLORS, HEAT, line_style, short

__all__ = [
    'COLORS', 'HEAT', 'PAPER_STYLE', 'grid_figure', 'legend_below',
    'line_style', 'paper_figure', 'paper_line', 'short'
]

PAPER_STYLE: dict[Any, Any] = {
    'axes.axisbelow': True,
    'axes.edgecolor': '#9aa4b2',
    'axes.formatter.useoffset': False,
    'axes.grid': True,
    'axes.spines.right': False,
    'axes.spines.top': False,
    'axes.titlesize': 9,
    'figure.constrained_layout.use': True,
    'figure.dpi': 200,
    'font.size': 8.5,
    'grid.color': '#e6e9ef',
    'legend.fontsize': 7.5,
    'legend.frameon': False,
    'pdf.fonttype': 42,  # TrueType: journals refuse matplotlib's Type 3
    'svg.fonttype': 'none',  # text stays text
    'text.parse_math': False,
}


def paper_line(index: int) -> dict[str, Any]:
    """Colour and dash of the index-th run, as matplotlib takes them."""
    color, dash = line_style(index)
    return dict(color=color, linestyle={
        'solid': '-', 'dash': '--', 'dot': ':'}[dash])


def paper_figure(columns: int, rows: int, width: float,
                 height: float) -> tuple[Figure, list[Axes]]:
    """A figure of ``rows x columns`` axes, row by row, without a display.

    Args:
        columns (int): Axes in a row.
        rows (int): Rows.
        width (float): Width of an axes in inches.
        height (float): Height of an axes in inches.
    """
    with rc_context(PAPER_STYLE):
        # Not through pyplot, which keeps every figure of a long training.
        figure = Figure(figsize=(width * columns, height * rows))
        axes = figure.subplots(rows, columns, squeeze=False)
    return figure, list(axes.flat)


def legend_below(figure: Figure, handles: list[Artist],
                 labels: list[str]) -> None:
    """Put a legend under all axes, in as many columns as the width holds.

    The figure grows by the legend's height, so that the axes keep theirs.
    """
    for columns in (3, 2, 1):
        legend = figure.legend(handles, labels, loc='outside lower center',
                               ncols=columns)
        box = legend.get_window_extent()
        if columns == 1 or box.width < figure.bbox.width:
            break
        legend.remove()
    figure.set_figheight(figure.get_figheight() + box.height / figure.dpi)


def grid_figure(count: int, columns: int, width: float,
                height: float) -> tuple[Figure, list[Axes]]:
    """As :func:`paper_figure`, of so many axes in so many columns at most."""
    columns = min(count, columns)
    figure, axes = paper_figure(
        columns, ceil(count / columns), width, height)
    for ax in axes[count:]:
        ax.remove()
    return figure, axes[:count]
