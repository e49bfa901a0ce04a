"""What results keep of single blocks: Figures 3, 9 a and 10 of the paper.

They are means over the test images. Figures 2 and 6 need the NSI of single
images, which results do not keep: a work directory's recording has them.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from projects.drawing import (
    line_style,
    paper_figure,
    paper_line,
    short,
)


def draw_blocks(rows: Mapping[str, Sequence[dict]]) -> Figure:
    """Draw NSI and its correlation with Δt along the blocks.

    Panels: mean NSI of the rows, with the range of the seeds (Fig. 3); then
    for each row whose Δt varies, a colour a seed, NSI in the first stage
    (Fig. 10) and the correlation over the images, block by block (Fig. 9 a).

    Args:
        rows (Mapping): What the seeds' results keep of stiffness, by the
            rows' labels; one stage or more has three recorded blocks.
    """
    adaptive = [label for label, seeds in rows.items() if _correlations(seeds)]
    figure, axes = paper_figure(2, 1 + len(adaptive), 3.6, 2.4)
    _draw_rows(axes[0], rows)
    axes[1].axis('off')
    axes[1].legend(*axes[0].get_legend_handles_labels(), loc='center left',
                   title='mean and range of the seeds')
    for label, first, over in zip(adaptive, axes[2::2], axes[3::2]):
        _draw_first_stage(first, label, rows[label])
        _draw_correlations(over, label, rows[label])
    return figure


def _correlations(seeds: Sequence[dict]) -> list[list[float | None]]:
    return [seed['correlation']['adaptive'] for seed in seeds
            if any(r is not None for r in seed['correlation']['adaptive'])]


def _draw_rows(ax: Axes, rows: Mapping[str, Sequence[dict]]) -> None:
    for i, (label, seeds) in enumerate(rows.items()):
        nsi = np.array([seed['nsi'] for seed in seeds])
        blocks = np.arange(1, nsi.shape[1] + 1)
        ax.plot(blocks, nsi.mean(0), **paper_line(i), linewidth=1.2,
                label=f'{short(label)} ({len(seeds)})')
        ax.fill_between(blocks, nsi.min(0), nsi.max(0),
                        color=line_style(i)[0], alpha=0.18, linewidth=0)
    _mark_stages(ax, seeds[0]['stages'])
    ax.set_yscale('log')
    # The default's labels are formulas, which this style does not read.
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_major_formatter(StrMethodFormatter('{x:g}'))
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.set_title('all recorded blocks', fontsize=8)
    ax.set_ylabel('mean NSI (adaptive)')


def _draw_first_stage(ax: Axes, label: str, seeds: Sequence[dict]) -> None:
    for i, seed in enumerate(seeds):
        stages = np.array(seed['stages'])
        nsi = np.array(seed['nsi'])[stages == stages[0]]
        ax.plot(np.arange(1, len(nsi) + 1), nsi, **paper_line(i), marker='.',
                linewidth=1.2)
    ax.set_title(f'{short(label)}: first stage, a colour a seed', fontsize=8)
    ax.set(xlabel='recorded block', ylabel='mean NSI (adaptive)')


def _draw_correlations(ax: Axes, label: str, seeds: Sequence[dict]) -> None:
    for i, values in enumerate(_correlations(seeds)):
        r = np.array([np.nan if v is None else v for v in values])
        ax.scatter(np.arange(1, len(r) + 1), r, s=9, color=line_style(i)[0])
    ax.axhline(0, color='#9aa4b2', linewidth=1)
    _mark_stages(ax, seeds[0]['stages'])
    ax.set_ylim(-1.05, 1.05)
    ax.set_title(f'{short(label)}: over images, a colour a seed', fontsize=8)
    ax.set_ylabel("Pearson's r of NSI and Δt")


def _mark_stages(ax: Axes, stages: Sequence[int]) -> None:
    for border in np.flatnonzero(np.diff(stages)):
        ax.axvline(border + 1.5, color='#9aa4b2', linewidth=0.8, dashes=(2, 2))
    ax.set_xlabel('recorded block')
