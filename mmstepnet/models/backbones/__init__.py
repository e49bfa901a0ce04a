from mmstepnet.compatibility import check_hosts
from mmstepnet.registry import MODELS

from .host import StepBackbone
from .resnet import StepResNet, StepResNetV1c, StepResNetV1d
from .resnet_cifar import StepResNetCIFAR
from .resnext import StepResNeXt

__all__ = [
    'PropagationVisionTransformer',
    'StepBackbone',
    'StepResNeXt',
    'StepResNet',
    'StepResNetCIFAR',
    'StepResNetV1c',
    'StepResNetV1d',
    'StepVisionTransformer',
]

try:
    check_hosts('mmpretrain')
    from .propagation_vision_transformer import PropagationVisionTransformer
    from .vision_transformer import StepVisionTransformer
except Exception as error:  # it may fail beside transformers 5 in any way
    _reason = f'{type(error).__name__}: {error}'

    def _refuse(*args, **kwargs) -> None:
        """Say why these two, which are MMPretrain's, are not there."""
        raise ImportError(
            'this backbone needs MMPretrain, which cannot be imported here '
            f'({_reason}); beside transformers 5 it never can, see '
            'docs/install_and_versions.md'
        )

    PropagationVisionTransformer = StepVisionTransformer = _refuse
    for _name in ('PropagationVisionTransformer', 'StepVisionTransformer'):
        MODELS.register_module(_name, force=True, module=_refuse)
