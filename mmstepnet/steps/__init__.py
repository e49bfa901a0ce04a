from .checkpoint import checkpoint
from .finding import FoundStep, find_steps
from .insert import insert_steps, remove_steps, step_parameters
from .known_blocks import StepDescription, register_block
from .residual import ResidualStep
from .tail import fused, is_fused

__all__ = [
    'FoundStep', 'ResidualStep', 'StepDescription', 'checkpoint', 'find_steps',
    'fused', 'insert_steps', 'is_fused', 'register_block', 'remove_steps',
    'step_parameters'
]
