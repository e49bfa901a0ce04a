"""ResNeXt whose residual step is chosen by an attention."""

from mmpretrain.models.backbones import ResNeXt

from mmstepnet.registry import MODELS

from .blocks import StepResLayer, StepResNeXtBottleneck
from .resnet import StepResNet


@MODELS.register_module()
class StepResNeXt(StepResNet, ResNeXt):
    """ResNeXt with an attention as its residual step.

    Aggregated Residual Transformations for Deep Neural Networks, CVPR 2017,
    https://arxiv.org/abs/1611.05431. The defaults are those of ResNeXt-50
    (32x4d). Parameter names are torchvision's.

    Args:
        depth (int): 50, 101 or 152.
        groups (int): Groups of the 3x3 convolutions. Defaults to 32.
        width_per_group (int): Their channels a group, in the first stage.
            Defaults to 4.
        base_width (int, optional): The same by MMDetection's name, where a
            config gives that. Defaults to None.
        **kwargs: See :class:`StepResNet`; ``preact`` is not available.

    Raises:
        ValueError: ``preact`` is set, or as :class:`StepResNet` does.
    """

    arch_settings = {
        50: (StepResNeXtBottleneck, (3, 4, 6, 3)),
        101: (StepResNeXtBottleneck, (3, 4, 23, 3)),
        152: (StepResNeXtBottleneck, (3, 8, 36, 3)),
    }

    def __init__(self,
                 depth: int,
                 *,
                 groups: int = 32,
                 width_per_group: int = 4,
                 base_width: int | None = None,
                 **kwargs):
        if kwargs.get('preact'):
            raise ValueError('StepResNeXt has no pre-activation form; leave '
                             'preact out, or use StepResNet')
        super().__init__(
            depth,
            groups=groups,
            width_per_group=(
                width_per_group if base_width is None else base_width),
            **kwargs)

    def make_res_layer(self, **kwargs) -> StepResLayer:
        """Build a stage."""
        return super().make_res_layer(
            groups=self.groups,
            width_per_group=self.width_per_group,
            base_channels=self.base_channels,
            **kwargs)
