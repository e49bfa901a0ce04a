from .resnet import StepResNet
from .resnet_cifar import StepResNetCIFAR

__all__ = ['StepResNet', 'StepResNetCIFAR']
