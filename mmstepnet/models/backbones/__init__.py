from mmstepnet.compatibility import check_hosts
from mmstepnet.registry import MODELS

from .host import StepBackbone
from .resnet import StepResNet, StepResNetV1c, StepResNetV1d
from .resnet_cifar import StepResNetCIFAR
from .resnext import StepResNeXt

__all__ = [
    'PropagationVisionTransformer', 'StepBackbone', 'StepResNeXt',
    'StepResNet', 'StepResNetCIFAR', 'StepResNetV1c', 'StepResNetV1d',
    'StepVisionTransformer'
]

try:
    check_hosts('mmpretrain')
except ImportError:

    def _needs_mmpretrain(**kwargs) -> None:
        """Say what is wrong: these two are MMPretrain's."""
        check_hosts('mmpretrain')

    PropagationVisionTransformer = StepVisionTransformer = _needs_mmpretrain
    for _name in ('PropagationVisionTransformer', 'StepVisionTransformer'):
        MODELS.register_module(_name, module=_needs_mmpretrain)
else:
    from .propagation_vision_transformer import PropagationVisionTransformer
    from .vision_transformer import StepVisionTransformer
