"""A pass of any network: which residual steps it takes, found by running it.

A model and what it is called with go in; sums of a state and a branch, in
their blocks and stages, come out. :func:`find_steps` is for users. The
recorder of stiffness measures what a :class:`Finder` finds, and
``insert_steps`` puts steps there. Of a step that a module takes by itself it
knows the small protocol of :mod:`.observed` alone. On PyTorch alone.
"""

from .additions import PROJECTS
from .finder import Finder, trace_pass
from .modes import hooked, in_mode, uncompiled
from .selection import Selection, match, select
from .stages import FIRST, Arrangement, FoundStep, find_steps
from .sums import Call, Sum
from .tags import tensors
from .wrappers import unwrap

__all__ = [
    'Arrangement',
    'Call',
    'FIRST',
    'PROJECTS',
    'Finder',
    'FoundStep',
    'Selection',
    'Sum',
    'find_steps',
    'hooked',
    'in_mode',
    'match',
    'select',
    'tensors',
    'trace_pass',
    'uncompiled',
    'unwrap',
]
