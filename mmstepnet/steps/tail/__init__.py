"""The tail of a block, a norm and a step, in few passes over the maps.

:func:`read_tail` is the only door: it asks whether the parts of a step are
ones that it knows (:mod:`.dispatch`). In eager mode :func:`take_tail` takes
StepNet's step as one differentiable function (:mod:`.function`, which has the
mathematics) whose passes over the maps are ATen's (:mod:`.aten`) or Triton's
(:mod:`.triton`). For compilers :mod:`.by_image` writes the step of every
channel gate in plain operations.
"""

from .dispatch import ByHand, ByImage, fused, is_as_made, read_tail, take_tail

__all__ = [
    'ByHand',
    'ByImage',
    'fused',
    'is_as_made',
    'read_tail',
    'take_tail',
]
