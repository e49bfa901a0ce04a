"""Steps by hand, in few passes over the maps.

In a ResNet the step is taken together with the norm before it, in one
function (:mod:`.function`); at the end of any other branch there is the
branch alone (:mod:`.scaled`). :mod:`.dispatch` is the only door: it asks
whether the parts of a step are ones that it knows. Passes over the maps are
ATen's or Triton's. For compilers :mod:`.by_image` writes the step of every
channel gate in plain operations.

StepNet's equation is written in six places, each for somebody else:

| where | for whom |
|---|---|
| `attentions/stepnet.py`, and `steps/residual.py` for the sum | readers, and \
every step that is not known here: the reference path |
| :func:`.parts.choose_by_formula` | derivatives of second order, observers, \
and tests: the oracle |
| :func:`.aten.choose` and its gradients | CPUs, and the trial of kernels: \
the same as few operations, with derivatives by hand |
| `vectors_kernel` in :mod:`.triton_kernels` | CUDA: one launch a direction |
| `_choose_held` there | CUDA with running statistics: in the one launch \
that holds an image's few channels |
| :mod:`.by_image` | compilers: it calls the attention, and writes only the \
norm and the sum |
"""

from .dispatch import (
    ByHand,
    ByImage,
    fused,
    is_as_made,
    read_branch,
    read_tail,
    take_branch,
    take_tail,
)

__all__ = [
    'ByHand',
    'ByImage',
    'fused',
    'is_as_made',
    'read_branch',
    'read_tail',
    'take_branch',
    'take_tail',
]
