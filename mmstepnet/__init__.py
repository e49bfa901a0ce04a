"""Residual networks whose step an attention chooses, on PyTorch alone.

``mmstepnet.models``, ``engine``, ``datasets``, ``jobs`` and ``registry`` bring
it into OpenMMLab and need that; nothing else here does.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import torch_version  # noqa: F401, it refuses what cannot work
from .attentions import ECA, SE, StepNet
from .steps import ResidualStep
from .version import __version__

if TYPE_CHECKING:
    from .propagation import MetricAttention
    from .steps import (
        find_steps,
        insert_steps,
        remove_blocks,
        remove_steps,
        step_parameters,
    )
    from .steps.calibration import calibrate
    from .steps.files import load_steps, save_steps
    from .steps.fold import fold
    from .steps.freezing import mark_only_steps_as_trainable
    from .stiffness import (
        TrajectoryRecorder,
        ablate_blocks,
        block_scores,
        measure_stiffness,
    )

LATER = {
    'MetricAttention': 'propagation',
    'TrajectoryRecorder': 'stiffness',
    'ablate_blocks': 'stiffness',
    'block_scores': 'stiffness',
    'calibrate': 'steps.calibration',
    'find_steps': 'steps',
    'fold': 'steps.fold',
    'insert_steps': 'steps',
    'load_steps': 'steps.files',
    'mark_only_steps_as_trainable': 'steps.freezing',
    'measure_stiffness': 'stiffness',
    'remove_blocks': 'steps',
    'remove_steps': 'steps',
    'save_steps': 'steps.files',
    'step_parameters': 'steps',
}
"""What is imported when it is first asked for, and from where."""

MODULES = 'export', 'figures', 'propagation', 'stiffness'
"""Likewise; the attentions and steps are there already."""

__all__ = [
    'ECA', 'SE', 'MetricAttention', 'ResidualStep', 'StepNet',
    'TrajectoryRecorder', '__version__', 'ablate_blocks', 'block_scores',
    'calibrate', 'find_steps', 'fold', 'insert_steps', 'load_steps',
    'mark_only_steps_as_trainable', 'measure_stiffness',
    'remove_blocks', 'remove_steps', 'save_steps', 'step_parameters'
]


def __getattr__(name: str) -> Any:
    """Import what takes time to import where it is used."""
    if name in LATER:
        return getattr(import_module(f'mmstepnet.{LATER[name]}'), name)
    if name in MODULES:
        return import_module(f'mmstepnet.{name}')
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__() -> list[str]:
    """What an editor or a notebook offers."""
    return [*__all__, *MODULES, 'attentions', 'steps']
