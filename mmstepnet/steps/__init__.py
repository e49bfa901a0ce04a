from .checkpoint import checkpoint
from .choice import fused, is_fused
from .residual import ResidualStep

__all__ = ['ResidualStep', 'checkpoint', 'fused', 'is_fused']
