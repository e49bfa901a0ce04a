"""Which residual blocks of other libraries are known, and what is f in them.

Blocks are recognised by the name of their class, so that no library has to
be installed. A subclass counts where it keeps the ``forward`` that is
described here.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch.nn as nn


@dataclass(frozen=True)
class Branch:
    """Block ``activation(identity + f * gate)`` whose f a submodule returns.

    Attributes:
        branch (Callable): Gives the submodule that returns f, from the block.
        gate (Callable): Gives the submodule that returns Δt, or None where
            Δt = 1.
    """

    branch: Callable[[nn.Module], nn.Module]
    gate: Callable[[nn.Module], nn.Module | None] = lambda block: None


@dataclass(frozen=True)
class States:
    """Block of plain steps without activation behind the sums.

    Attributes:
        norm (str): Submodule whose input is the state between the block's
            two steps (attention, MLP). Empty where the block is one step.
    """

    norm: str = ''


def _last_plugin_or_norm(block: nn.Module) -> nn.Module:
    if block.with_plugins and block.after_conv3_plugin_names:
        return getattr(block, block.after_conv3_plugin_names[-1])
    return block.norm3


def _timm_branch(norm: str) -> Callable[[nn.Module], nn.Module]:

    def branch(block: nn.Module) -> nn.Module:
        if block.se is None or _timm_gate(block) is not None:
            return getattr(block, norm)
        # A reading: an attention whose gate is no module of its own (CBAM
        # has two) is part of f, and the step is 1.
        return block.se

    return branch


def _timm_gate(block: nn.Module) -> nn.Module | None:
    return getattr(block.se, 'gate', None)


KNOWN_BLOCKS = {
    'mmpretrain.models.backbones.resnet.BasicBlock':
    Branch(lambda block: block.norm2),
    'mmpretrain.models.backbones.resnet.Bottleneck':
    Branch(lambda block: block.norm3),
    'mmpretrain.models.backbones.seresnet.SEBottleneck':
    Branch(lambda block: block.norm3, lambda block: block.se_layer.conv2),
    'mmpretrain.models.backbones.convnext.ConvNeXtBlock':
    States(),
    'mmpretrain.models.backbones.vision_transformer.TransformerEncoderLayer':
    States('ln2'),
    'mmpretrain.models.backbones.swin_transformer.SwinBlock':
    States('norm2'),
    'mmdet.models.backbones.resnet.BasicBlock':
    Branch(lambda block: block.norm2),
    'mmdet.models.backbones.resnet.Bottleneck':
    Branch(_last_plugin_or_norm),
    'mmdet.models.backbones.swin.SwinBlock':
    States('norm2'),
    'mmseg.models.backbones.resnet.BasicBlock':
    Branch(lambda block: block.norm2),
    'mmseg.models.backbones.resnet.Bottleneck':
    Branch(_last_plugin_or_norm),
    'torchvision.models.resnet.BasicBlock':
    Branch(lambda block: block.bn2),
    'torchvision.models.resnet.Bottleneck':
    Branch(lambda block: block.bn3),
    'timm.models.resnet.BasicBlock':
    Branch(_timm_branch('bn2'), _timm_gate),
    'timm.models.resnet.Bottleneck':
    Branch(_timm_branch('bn3'), _timm_gate),
}
"""Description of each known class of blocks.

``ResNeXt`` of both hosts and timm's SE, ECA and ResNeXt variants are made of
these. Layer scale is a parameter and belongs to f.
"""


def describe(block: nn.Module) -> Branch | States | None:
    """Description of a block, None if its class is not known."""
    for cls in type(block).__mro__:
        name = f'{cls.__module__}.{cls.__qualname__}'
        if name in KNOWN_BLOCKS and type(block).forward is cls.forward:
            return KNOWN_BLOCKS[name]
    return None
