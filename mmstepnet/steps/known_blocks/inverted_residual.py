"""Inverted residual blocks: MobileNet, EfficientNet. Some add no identity."""

import torch.nn as nn
from torch import Tensor

from .description import StepDescription
from .forwards import known
from .parts import all_but_last, last

# --- torchvision -------------------------------------------------------------

known(
    'torchvision.models.mobilenetv2.InvertedResidual',
    StepDescription(
        lambda block, x: all_but_last(block.conv, x), width='conv',
        norm=lambda block: last(block.conv)),
    residual='use_res_connect')
for name, drop_path in (('mobilenetv3.InvertedResidual', None),
                        ('efficientnet.MBConv', 'stochastic_depth')):
    known(
        f'torchvision.models.{name}',
        StepDescription(
            lambda block, x: all_but_last(block.block, x), width='block',
            norm=lambda block: last(block.block), drop_path=drop_path),
        residual='use_res_connect')
known(
    'torchvision.models.efficientnet.FusedMBConv',
    StepDescription(
        # Without expansion it is one convolution with norm and activation.
        lambda block, x: block.block(x), width='block',
        drop_path='stochastic_depth'),
    residual='use_res_connect')

# --- timm --------------------------------------------------------------------


def _to_depth(block: nn.Module, x: Tensor) -> Tensor:
    """Blocks that take space into channels first, in some EfficientNets."""
    if block.conv_s2d is None:
        return x
    return block.bn_s2d(block.conv_s2d(x))


def _timm_inverted(block: nn.Module, x: Tensor) -> Tensor:
    x = block.bn1(block.conv_pw(_to_depth(block, x)))
    x = block.bn2(block.conv_dw(x))
    return block.bn3(block.conv_pwl(block.se(block.aa(x))))


def _timm_separable(block: nn.Module, x: Tensor) -> Tensor:
    x = block.bn1(block.conv_dw(_to_depth(block, x)))
    return block.bn2(block.conv_pw(block.se(block.aa(x))))


def _timm_edge(block: nn.Module, x: Tensor) -> Tensor:
    x = block.aa(block.bn1(block.conv_exp(x)))
    return block.bn2(block.conv_pwl(block.se(x)))


for name, branch, width in (
        ('InvertedResidual', _timm_inverted, 'bn3'),
        ('DepthwiseSeparableConv', _timm_separable, 'bn2'),
        ('EdgeResidual', _timm_edge, 'bn2'),
        ('ConvBnAct',
         lambda block, x: block.aa(block.bn1(block.conv(x))), 'bn1')):
    # timm's norms hold an activation, hence are part of f.
    known(
        f'timm.models._efficientnet_blocks.{name}',
        StepDescription(branch, width=width, drop_path='drop_path'),
        residual='has_skip')

# --- OpenMMLab ---------------------------------------------------------------


def _mm_inverted(block: nn.Module, x: Tensor) -> Tensor:
    if block.with_expand_conv:
        x = block.expand_conv(x)
    x = block.depthwise_conv(x)
    return block.linear_conv(block.se(x) if block.with_se else x)


def _mm_edge(block: nn.Module, x: Tensor) -> Tensor:
    x = block.conv1(x)
    return block.conv2(block.se(x) if block.with_se else x)


for name in ('mmpretrain.models.backbones.mobilenet_v2',
             'mmseg.models.utils.inverted_residual'):
    known(
        f'{name}.InvertedResidual',
        StepDescription(lambda block, x: block.conv(x), width='conv'),
        residual='use_res_connect')
for name in ('mmpretrain.models.utils', 'mmdet.models.layers'):
    known(
        f'{name}.inverted_residual.InvertedResidual',
        StepDescription(
            _mm_inverted, width='linear_conv', drop_path='drop_path'),
        residual='with_res_shortcut')
known(
    'mmseg.models.utils.inverted_residual.InvertedResidualV3',
    StepDescription(_mm_inverted, width='linear_conv'),
    residual='with_res_shortcut')
known(
    'mmpretrain.models.backbones.efficientnet.EdgeResidual',
    StepDescription(_mm_edge, width='conv2', drop_path='drop_path'),
    residual='with_residual')
