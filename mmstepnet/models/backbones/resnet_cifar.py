"""ResNet for 32x32 images, with an attention as its residual step."""

import torch.nn as nn
from mmpretrain.models.backbones import ResNet_CIFAR

from mmstepnet.registry import MODELS

from .blocks import StepBasicBlock, StepBottleneck
from .resnet import StepResNet


@MODELS.register_module()
class StepResNetCIFAR(StepResNet, ResNet_CIFAR):
    """Three-stage ResNet of the CIFAR experiments (Table 1, Table 6).

    Depth 20, 56 and 110 are made of basic blocks with 16, 32 and 64 channels,
    depth 164 of 18 bottlenecks a stage with 64, 128 and 256. Its stem is one
    3x3 convolution of stride 1 without pooling.

    Args:
        depth (int): 20, 56, 110 or 164.
        stem_channels (int): Output channels of the stem. Defaults to 16.
        base_channels (int): Middle channels of the first stage. Defaults
            to 16.
        **kwargs: See :class:`StepResNet`. ``num_stages``, ``strides`` and
            ``dilations`` are given; ``out_indices`` defaults to ``(2, )``.
    """

    arch_settings = {
        20: (StepBasicBlock, (3, 3, 3)),
        56: (StepBasicBlock, (9, 9, 9)),
        110: (StepBasicBlock, (18, 18, 18)),
        164: (StepBottleneck, (18, 18, 18)),
    }
    stem_map_size = 32

    def __init__(self,
                 depth: int,
                 *,
                 stem_channels: int = 16,
                 base_channels: int = 16,
                 out_indices=(2, ),
                 **kwargs):
        super().__init__(
            depth,
            stem_channels=stem_channels,
            base_channels=base_channels,
            num_stages=3,
            strides=(1, 2, 2),
            dilations=(1, 1, 1),
            out_indices=out_indices,
            **kwargs)

    def _make_stem_layer(self, in_channels: int, stem_channels: int) -> None:
        super()._make_stem_layer(in_channels, stem_channels)
        self.maxpool = nn.Identity()
