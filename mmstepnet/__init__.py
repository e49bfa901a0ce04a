"""Residual networks whose step an attention chooses, on PyTorch alone.

``mmstepnet.models``, ``engine``, ``datasets``, ``jobs`` and ``registry`` bring
it into OpenMMLab and need that; nothing else here does. PyTorch is imported
with the first name that needs it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .version import __version__

if TYPE_CHECKING:
    from .attentions import ECA, SE, StepNet
    from .propagation import MetricAttention
    from .steps import (
        ResidualStep,
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
    'ECA': 'attentions',
    'MetricAttention': 'propagation',
    'ResidualStep': 'steps',
    'SE': 'attentions',
    'StepNet': 'attentions',
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

MODULES = ('attentions', 'export', 'figures', 'propagation', 'steps',
           'stiffness')
"""Likewise."""

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
    return [*__all__, *MODULES]
