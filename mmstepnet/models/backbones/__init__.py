from .resnet import StepResNet
from .resnet_cifar import StepResNetCIFAR
from .resnext import StepResNeXt
from .vision_transformer import StepVisionTransformer

__all__ = [
    'StepResNeXt', 'StepResNet', 'StepResNetCIFAR', 'StepVisionTransformer'
]
