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
        summary,
    )
    from .trials import compare_rungs

_NAMES = {
    'attentions': ('ECA', 'SE', 'StepNet'),
    'propagation': ('MetricAttention',),
    'steps': (
        'ResidualStep',
        'find_steps',
        'insert_steps',
        'remove_blocks',
        'remove_steps',
        'step_parameters',
    ),
    'steps.calibration': ('calibrate',),
    'steps.files': ('load_steps', 'save_steps'),
    'steps.fold': ('fold',),
    'steps.freezing': ('mark_only_steps_as_trainable',),
    'stiffness': (
        'TrajectoryRecorder',
        'ablate_blocks',
        'block_scores',
        'measure_stiffness',
        'summary',
    ),
    'trials': ('compare_rungs',),
}
"""Names that are imported when they are first asked for, by module."""

MODULES = (
    'attentions',
    'export',
    'figures',
    'propagation',
    'steps',
    'stiffness',
)
"""Likewise."""

__all__ = [
    'ECA',
    'SE',
    'MetricAttention',
    'ResidualStep',
    'StepNet',
    'TrajectoryRecorder',
    '__version__',
    'ablate_blocks',
    'block_scores',
    'calibrate',
    'compare_rungs',
    'find_steps',
    'fold',
    'insert_steps',
    'load_steps',
    'mark_only_steps_as_trainable',
    'measure_stiffness',
    'remove_blocks',
    'remove_steps',
    'save_steps',
    'step_parameters',
    'summary',
]


def __getattr__(name: str) -> Any:
    """Import what takes time to import where it is used."""
    for module, names in _NAMES.items():
        if name in names:
            return getattr(import_module(f'mmstepnet.{module}'), name)
    if name in MODULES:
        return import_module(f'mmstepnet.{name}')
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__() -> list[str]:
    """Names for an editor or a notebook."""
    return [*__all__, *MODULES]
