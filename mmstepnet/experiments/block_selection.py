"""Which few blocks should carry the attention."""

import re
from collections.abc import Sequence

import torch
from torch import Tensor

BLOCK = re.compile(r'(?:.*\.)?(layer\d+\.\d+)')


def block_stiffness(nsi: Tensor, stages: Tensor) -> Tensor:
    r"""Stiffness of each block over all thresholds.

    Block t of a trajectory is stiff to degree :math:`(M_1, M_2)` where
    :math:`\zeta_t \ge \max(\mu_S (1 + M_1), M_2)`, with :math:`\mu_S` the
    mean of its stage. The area of all such degrees is
    :math:`\max(\zeta_t / \mu_S - 1, 0)\, \zeta_t`; its mean over the samples
    is the block's share of :math:`\iint \hat p`, times L (Huang et al.,
    ICCV 2023, §3.1). That blocks are ranked by it is a reading of ours: the
    paper does not say how to choose them.

    Args:
        nsi (Tensor): Neural stiffness index, (N, L).
        stages (Tensor): Stage of each block, (L,), integers.

    Returns:
        Tensor: (L,), float64; 0 for the only block of a stage.
    """
    nsi = nsi.double()
    area = torch.zeros_like(nsi)
    for stage in stages.unique():
        zeta = nsi[:, stages == stage]
        mean = zeta.mean(1, keepdim=True)
        excess = torch.where(mean > 0, zeta / mean - 1, 0).clamp(min=0)
        area[:, stages == stage] = excess * zeta
    return area.mean(0)


def stiffest_blocks(blocks: Sequence[str], stiffness: Tensor,
                    count: int) -> list[str]:
    """Choose the stiffest blocks, in the network's order.

    Args:
        blocks (Sequence[str]): Names of the L blocks.
        stiffness (Tensor): Their stiffness, (L,).
        count (int): How many.

    Raises:
        ValueError: Fewer blocks than ``count`` are stiff to any degree.
    """
    stiff = int((stiffness > 0).sum())
    if not 1 <= count <= stiff:
        raise ValueError(
            f'{count} blocks cannot be chosen: {stiff} of the {len(blocks)} '
            'that are measured are stiff to any degree (the first of each '
            'stage is not measured); choose --count accordingly')
    chosen = stiffness.argsort(descending=True)[:count].sort().values
    return [blocks[i] for i in chosen.tolist()]


def backbone_names(blocks: Sequence[str]) -> list[str]:
    """Names of blocks as ``StepResNet`` takes them, such as ``'layer1.2'``.

    Raises:
        ValueError: The model is no ResNet.
    """
    matches = [BLOCK.fullmatch(name) for name in blocks]
    if not all(matches):
        wrong = next(b for b, m in zip(blocks, matches) if not m)
        raise ValueError(f'block {wrong!r} is none of a ResNet, whose blocks '
                         "are named as in 'layer1.2'; StepResNet and its "
                         'relatives can carry attentions in chosen blocks')
    return [match[1] for match in matches]
