from .propagation_vision_transformer import PropagationVisionTransformer
from .resnet import StepResNet
from .resnet_cifar import StepResNetCIFAR
from .resnext import StepResNeXt
from .vision_transformer import StepVisionTransformer

__all__ = [
    'PropagationVisionTransformer', 'StepResNeXt', 'StepResNet',
    'StepResNetCIFAR', 'StepVisionTransformer'
]
