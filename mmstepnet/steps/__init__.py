from .fused import fused, is_fused
from .residual import ResidualStep

__all__ = ['ResidualStep', 'fused', 'is_fused']
