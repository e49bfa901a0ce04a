from .checkpoint import checkpoint
from .finding import FoundStep, find_steps
from .insert import insert_steps, remove_steps, step_parameters
from .residual import ResidualStep
from .tail import fused, is_fused

__all__ = [
    'FoundStep', 'ResidualStep', 'checkpoint', 'find_steps',
    'fused', 'insert_steps', 'is_fused', 'remove_steps',
    'step_parameters'
]
