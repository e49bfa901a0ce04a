from .checkpoint import checkpoint
from .insert import insert_steps, remove_steps, step_parameters
from .known_blocks import StepDescription, register_block
from .residual import ResidualStep
from .tail import fused, is_fused

__all__ = [
    'ResidualStep', 'StepDescription', 'checkpoint', 'fused', 'insert_steps',
    'is_fused', 'register_block', 'remove_steps', 'step_parameters'
]
