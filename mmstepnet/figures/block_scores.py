"""Scores of blocks, one above the other."""

from collections.abc import Mapping
from pathlib import Path

import altair as alt
from scipy.stats import spearmanr

from .figures import save_charts
from .style import COLORS, block_bars, panels


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
            with it, over the blocks that they share.
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
            what += f', Spearman ρ = {rho:.2f}'
        parts.append(
            block_bars(what, blocks, values, 'score').encode(
                color=alt.value(COLORS[i % len(COLORS)])
            )
        )
    return panels(parts, columns=1).properties(title=title)
