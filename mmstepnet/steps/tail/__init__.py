"""The fused residual step: StepNet's tail in as few passes as a plain one.

:func:`fused_step` is the only door. It asks whether (:mod:`.dispatch`), takes
the step as one differentiable function (:mod:`.function`) whose passes over
the maps are ATen's (:mod:`.aten`) or Triton's (:mod:`.triton`); what lies
between the passes, on vectors, is :mod:`.formulas`.
"""

from .dispatch import fused, fused_step, is_fused, only_looks

__all__ = ['fused', 'fused_step', 'is_fused', 'only_looks']
