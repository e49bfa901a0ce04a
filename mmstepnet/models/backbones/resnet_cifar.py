"""ResNet for 32x32 images, with an attention as its residual step."""

from importlib.util import find_spec

import torch.nn as nn
from mmcv.cnn import build_conv_layer, build_norm_layer

from mmstepnet.registry import MODELS

from .host import find_host
from .resnet import StepResNet

THREE_STAGES = dict(
    num_stages=3,
    strides=(1, 2, 2),
    dilations=(1, 1, 1),
    out_indices=(2,),
    stem_channels=16,
    base_channels=16,
    norm_eval=False,
)
FOUR_STAGES = dict(out_indices=(3,), norm_eval=False)
HOSTS = ('mmpretrain', 'mmdet', 'mmseg')


@MODELS.register_module()
class StepResNetCIFAR(StepResNet):
    """ResNet of the CIFAR experiments (Table 1, Table 6).

    Its stem is one 3x3 convolution of stride 1 without pooling. Depth 20, 56
    and 110 are three stages of basic blocks with 16, 32 and 64 channels,
    depth 164 is 18 bottlenecks a stage with 64, 128 and 256. Other depths are
    MMPretrain's ``ResNet_CIFAR`` of four stages. Defaults are the same under
    every host, MMPretrain's, so that neither ``host`` nor a default scope is
    needed: any host that is installed gives the same network.

    Args:
        depth (int): 20, 56, 110 or 164; or 18, 34, 50, 101 or 152.
        stem_channels (int): Output channels of the stem. Defaults to 16, to
            64 with four stages.
        base_channels (int): Middle channels of the first stage. Defaults
            to 16, to 64 with four stages.
        **kwargs: See :class:`StepResNet`. ``out_indices`` defaults to the
            last stage, ``norm_eval`` to False.
    """

    stem_map_size = 32

    @property
    def arch_settings(self) -> dict:
        """Block and number of blocks a stage, by depth."""
        theirs = self.host.arch_settings
        basic, bottleneck = theirs[18][0], theirs[50][0]
        return {
            **theirs,
            20: (basic, (3, 3, 3)),
            56: (basic, (9, 9, 9)),
            110: (basic, (18, 18, 18)),
            164: (bottleneck, (18, 18, 18)),
        }

    @classmethod
    def _find_host(cls, host: str | None) -> type:
        try:
            return super()._find_host(host)
        except ValueError:
            return find_host(
                cls.host_type, host or next(filter(find_spec, HOSTS), None)
            )

    def __init__(self, depth: int, **kwargs):
        four = depth in self.host.arch_settings
        super().__init__(
            depth, **{**(FOUR_STAGES if four else THREE_STAGES), **kwargs}
        )

    def _make_stem_layer(self, in_channels: int, stem_channels: int) -> None:
        self.conv1 = build_conv_layer(
            self.conv_cfg,
            in_channels,
            stem_channels,
            kernel_size=3,
            padding=1,
            bias=False,
        )
        self.norm1_name, norm1 = build_norm_layer(
            self.norm_cfg, stem_channels, postfix=1
        )
        self.add_module(self.norm1_name, norm1)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.Identity()
