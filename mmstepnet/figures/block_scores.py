"""Scores of blocks, one above the other."""

from collections.abc import Mapping
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure
from scipy.stats import spearmanr

from .style import PAPER_STYLE, line_style, paper_figure, short


def save_block_scores(scores: Mapping[str, Mapping[str, float]],
                      path: str | Path, title: str = '') -> None:
    """Draw what is known of each block as bars, a panel for each score.

    Args:
        scores (Mapping): By the score's name values by the block's name, as
            :func:`~mmstepnet.stiffness.block_scores` and
            :func:`~mmstepnet.stiffness.ablate_blocks` give them. Blocks are
            those of the first; the other panels say their rank correlation
            with it, over the blocks that they share.
        path (str | Path): The file; its ending says which format.
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
    with rc_context(PAPER_STYLE):
        draw_block_scores(scores, title).savefig(path)


def draw_block_scores(scores: Mapping[str, Mapping[str, float]],
                      title: str = '') -> Figure:
    """The figure of :func:`save_block_scores`."""
    first = next(iter(scores.values()))
    blocks = list(first)
    figure, axes = paper_figure(
        1, len(scores), max(3.2, 0.26 * len(blocks) + 1), 1.3)
    for i, (ax, (name, values)) in enumerate(zip(axes, scores.items())):
        shared = [block for block in blocks if block in values]
        ax.bar([blocks.index(block) for block in shared],
               [values[block] for block in shared],
               color=line_style(i)[0], width=0.7)
        what = short(name, 40)
        if i and len(shared) > 2:
            rho = spearmanr([values[block] for block in shared],
                            [first[block] for block in shared]).statistic
            what += f', Spearman ρ = {rho:.2f}'
        ax.set_title(what, loc='left')
        ax.set_xlim(-0.6, len(blocks) - 0.4)
        ax.set_xticks(range(len(blocks)), [])
    axes[-1].set_xticklabels([short(b, 16) for b in blocks], rotation=90)
    figure.suptitle(title, fontsize=9)
    return figure
