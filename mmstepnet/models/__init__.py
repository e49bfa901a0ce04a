from .attentions import *  # noqa: F403
from .backbones import *  # noqa: F403
from .residual import ResidualStep

__all__ = ['ResidualStep']
