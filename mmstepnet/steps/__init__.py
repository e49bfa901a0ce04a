"""Residual steps in networks: find, insert, calibrate, keep and fold them.

For whoever has a network. A model goes in; the same model comes out, and its
blocks take steps that an attention chooses. ``tail/`` is StepNet's step
written by hand. On PyTorch alone, and safetensors in ``files.py``.
"""

from mmstepnet.tracing import FoundStep, find_steps

from .insert import insert_steps, remove_steps, step_parameters
from .removal import RemovedBlock, remove_blocks
from .residual import ResidualStep
from .tail import fused

__all__ = [
    'FoundStep',
    'RemovedBlock',
    'ResidualStep',
    'find_steps',
    'fused',
    'insert_steps',
    'remove_blocks',
    'remove_steps',
    'step_parameters',
]
