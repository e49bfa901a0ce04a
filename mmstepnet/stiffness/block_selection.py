"""Which few blocks should carry the attention."""

import re
from collections.abc import Mapping, Sequence

import torch
import torch.nn as nn
from torch import Tensor

BLOCK = re.compile(r'(?:.*\.)?(layer\d+\.\d+)')

COUNTERPARTS = {
    'ResNet': dict(type='mmstepnet.StepResNet'),
    'ResNetV1c': dict(type='mmstepnet.StepResNet', deep_stem=True),
    'ResNetV1d': dict(
        type='mmstepnet.StepResNet', deep_stem=True, avg_down=True),
    'ResNeXt': dict(type='mmstepnet.StepResNeXt'),
}
"""Our backbones by the hosts' of the same structure."""


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


def with_stepnet(backbone: Mapping, blocks: Sequence[str]) -> dict:
    """What to change in a plain backbone's config to put StepNet into blocks.

    Args:
        backbone (Mapping): Its config, of ours or of a host's.
        blocks (Sequence[str]): Names of the blocks.

    Raises:
        ValueError: The backbone has an attention, or none of ours has its
            structure.
    """
    name = backbone['type']
    name = name if isinstance(name, str) else name.__name__
    changes = {}
    if name.startswith('mmstepnet.'):
        # Left out, it is StepNet.
        if backbone.get('attention', name) is not None:
            raise ValueError(
                'the backbone has an attention; give the config and '
                'checkpoint of a plain network, with attention=None')
    else:
        changes = COUNTERPARTS.get(name.rpartition('.')[2])
        if changes is None:
            raise ValueError(
                f'backbone {name!r} has no counterpart here; expected one of '
                f'{", ".join(COUNTERPARTS)} or of mmstepnet')
    attention = dict(type='StepNet')
    if 'attention' in backbone:  # None, which takes no part of a dict
        attention['_delete_'] = True
    return dict(**changes, attention=attention, blocks=list(blocks))


def check_structure(plain: nn.Module, ours: nn.Module) -> None:
    """Refuse a backbone that is not the plain one with attentions.

    Args:
        plain (nn.Module): The plain backbone.
        ours (nn.Module): The backbone in its place.

    Raises:
        ValueError: A weight of the plain backbone has another shape or is
            missing.
    """
    shapes = {name: value.shape for name, value in ours.state_dict().items()}
    for name, value in plain.state_dict().items():
        if shapes.get(name) != value.shape:
            raise ValueError(
                f'{type(ours).__name__} cannot take the place of '
                f'{type(plain).__name__}: {name} is {tuple(value.shape)} '
                f'there and {tuple(shapes.get(name) or ()) or "missing"} '
                'here; write the config by hand')
