"""Residual networks whose step an attention chooses, on PyTorch alone.

``mmstepnet.models``, ``engine``, ``datasets`` and ``registry`` bring it into
OpenMMLab and need that; nothing else here does.
"""

from importlib import import_module

from . import torch_version  # noqa: F401, it refuses what cannot work
from .attentions import ECA, SE, StepNet
from .steps import ResidualStep
from .version import __version__

LATER = {
    'MetricAttention': 'mmstepnet.propagation',
    'TrajectoryRecorder': 'mmstepnet.stiffness',
    'calibrate': 'mmstepnet.steps.calibration',
    'find_steps': 'mmstepnet.steps',
    'fold': 'mmstepnet.steps.fold',
    'insert_steps': 'mmstepnet.steps',
    'load_steps': 'mmstepnet.steps.files',
    'mark_only_steps_as_trainable': 'mmstepnet.steps.freezing',
    'measure_stiffness': 'mmstepnet.stiffness',
    'register_block': 'mmstepnet.blocks',
    'remove_steps': 'mmstepnet.steps',
    'save_steps': 'mmstepnet.steps.files',
    'step_parameters': 'mmstepnet.steps',
}
"""What is imported when it is first asked for, and from where."""

__all__ = [
    'ECA', 'SE', 'MetricAttention', 'ResidualStep', 'StepNet',
    'TrajectoryRecorder', '__version__', 'calibrate', 'find_steps', 'fold',
    'insert_steps', 'load_steps', 'mark_only_steps_as_trainable',
    'measure_stiffness', 'register_block', 'remove_steps', 'save_steps',
    'step_parameters'
]


def __getattr__(name: str):
    """Import what takes time to import where it is used."""
    if name in LATER:
        return getattr(import_module(LATER[name]), name)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
