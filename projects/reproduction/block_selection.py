"""Which few blocks should carry the attention."""

import re
from collections.abc import Mapping, Sequence

import numpy as np
import torch.nn as nn

from mmstepnet.checks import check_choice
from mmstepnet.stiffness.checks import ArrayLike

BLOCK = re.compile(r'(?:.*\.)?(layer\d+\.\d+)')

COUNTERPARTS = {
    'ResNet': dict(type='mmstepnet.StepResNet'),
    'ResNetV1c': dict(type='mmstepnet.StepResNetV1c'),
    'ResNetV1d': dict(type='mmstepnet.StepResNetV1d'),
    'ResNeXt': dict(type='mmstepnet.StepResNeXt'),
}
"""Our backbones by the hosts' of the same structure."""


CHOICES = 'stiffest', 'least-stiff', 'random'
"""Which blocks to choose: the stiffest, or what they are compared with."""


def choose_blocks(blocks: Sequence[str], stiffness: ArrayLike, count: int,
                  which: str = 'stiffest') -> list[str]:
    """Choose a few blocks, in the network's order.

    Args:
        blocks (Sequence[str]): Names of the L blocks.
        stiffness (Tensor | ndarray): Their stiffness, (L,), see
            :func:`~mmstepnet.stiffness.block_stiffness`.
        count (int): How many.
        which (str): ``'stiffest'``, ``'least-stiff'`` or ``'random'``,
            always the same ones. Defaults to ``'stiffest'``.

    Raises:
        ValueError: There are fewer blocks than ``count``, or fewer that are
            stiff to any degree where the stiffest are wanted; or ``which``
            is none of the three.
    """
    check_choice('which', which, CHOICES)
    stiffness = np.asarray(stiffness)
    stiff = int((stiffness > 0).sum())
    if not 1 <= count <= (stiff if which == 'stiffest' else len(blocks)):
        raise ValueError(
            f'{count} blocks cannot be chosen: {stiff} of the {len(blocks)} '
            'that are measured are stiff to any degree (the first of each '
            'stage is not measured); choose --count accordingly')
    if which == 'random':
        order = np.random.default_rng(0).permutation(len(blocks))
    else:
        sign = -1 if which == 'stiffest' else 1
        order = np.argsort(sign * stiffness, kind='stable')
    return [blocks[i] for i in sorted(order[:count].tolist())]


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
    if not isinstance(name, str):
        name = f'{name.__module__}.{name.__name__}'
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
