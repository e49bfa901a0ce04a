"""Scores of blocks, one above the other."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import altair as alt
from scipy.stats import spearmanr

from .figures import save_charts
from .style import COLORS, block_axis, block_bars, chart, panels
from .trajectories import GREY

AXIS = 'residual block'


def save_block_scores(
    scores: Mapping[str, Mapping[str, float]],
    path: str | Path,
    title: str = '',
) -> None:
    """Draw what is known of each block as bars, a panel for each score.

    Args:
        scores (Mapping): By the score's name values by the block's name, as
            :func:`~mmstepnet.stiffness.block_scores` and
            :func:`~mmstepnet.stiffness.ablate_blocks` give them. Blocks are
            those of the first; the other panels say their rank correlation
            with it, over the blocks that they share. A block of the first that
            has no value in another panel is "not recorded" there.
        path (str | Path): The file, ``.png``, ``.svg`` or ``.pdf``.
        title (str): Above all. Defaults to none.

    Example:
        >>> import torch
        >>> from torchvision.models import resnet18
        >>> from mmstepnet import block_scores
        >>> from mmstepnet.figures import save_block_scores
        >>> batches = [torch.rand(2, 3, 64, 64)]
        >>> save_block_scores(
        ...     {score: block_scores(resnet18(), batches, score)
        ...      for score in ('adaptive', 'influence')}, 'blocks.png')
    """
    save_charts({Path(path): block_scores_figure(scores, title)})


def block_scores_figure(
    scores: Mapping[str, Mapping[str, float]], title: str = ''
) -> alt.ConcatChart:
    """The figure of :func:`save_block_scores`."""
    first = next(iter(scores.values()))
    blocks = list(first)
    parts = []
    for i, (name, values) in enumerate(scores.items()):
        shared = [block for block in blocks if block in values]
        what = name
        if i and len(shared) > 2:
            rho = spearmanr(
                [values[block] for block in shared],
                [first[block] for block in shared],
            ).statistic
            what += (
                f', Spearman ρ = {rho:.2f} over {len(shared)} of '
                f'{len(blocks)} blocks'
            )
        bars = block_bars(what, blocks, values, 'score').encode(
            block_axis(blocks, 'left').title(AXIS),
            color=alt.value(COLORS[i % len(COLORS)]),
        )
        if len(shared) < len(blocks):
            missing = [k for k, b in enumerate(blocks, 1) if b not in values]
            bars = alt.layer(
                bars, _not_recorded(blocks, missing, bars.height)
            ).properties(
                width=bars.width, height=bars.height, title=bars.title
            )
        parts.append(bars)
    return panels(parts, columns=1).properties(title=title)


def _not_recorded(
    blocks: Sequence[str], places: Sequence[int], height: int
) -> alt.Chart:
    """Words at places without a bar, which else would read as 0."""
    return (
        chart(at=places)
        .mark_text(
            text='not recorded',
            angle=270,
            align='left',
            fontSize=10,
            color=GREY,
        )
        .encode(block_axis(blocks).title(AXIS), y=alt.value(height - 6))
    )
