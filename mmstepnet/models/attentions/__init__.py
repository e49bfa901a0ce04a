from .base import Attention, build_attention
from .se import SE
from .stepnet import StepNet

__all__ = ['SE', 'Attention', 'StepNet', 'build_attention']
