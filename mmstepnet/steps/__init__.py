from .fused import (
    PooledMap,
    fused,
    fused_residual_step,
    is_fused,
    serves,
)

__all__ = ['PooledMap', 'fused', 'fused_residual_step', 'is_fused', 'serves']
