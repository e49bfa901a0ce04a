"""The tail of a block, a norm and a step, in few passes over the maps.

:func:`fused_step` is the only door. It asks whether (:mod:`.dispatch`, which
knows the parts by :mod:`.reading`). In eager mode it takes StepNet's step as
one differentiable function (:mod:`.function`) whose passes over the maps are
ATen's (:mod:`.aten`) or Triton's (:mod:`.triton`); what lies between the
passes, on vectors, is :mod:`.formulas`. For compilers :mod:`.by_image` writes
the step of every channel gate in plain operations.
"""

from .dispatch import fused, fused_step
from .reading import only_looks

__all__ = ['fused', 'fused_step', 'only_looks']
