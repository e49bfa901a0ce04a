"""Training in bfloat16, on CPUs too."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn as nn
from mmengine import registry
from mmengine.optim import OptimWrapper

OPTIM_WRAPPERS = registry.Registry(
    registry.OPTIM_WRAPPERS.name,
    parent=registry.OPTIM_WRAPPERS,
    scope='mmstepnet',
)
"""A node of mmengine's registry. Configs name its types as the package's."""


@OPTIM_WRAPPERS.register_module()
class AutocastOptimWrapper(OptimWrapper):
    """Compute the loss in bfloat16 where that is safe; weights stay float32.

    mmengine's ``AmpOptimWrapper`` scales losses for float16 and refuses
    CPUs. bfloat16 has the exponents of float32, so it needs no scaling, and
    recent CPUs multiply matrices in it two to three times faster. Those
    without instructions for it take ten times as long as in float32: there
    give ``--cfg-options optim_wrapper.type=OptimWrapper``, which gives other
    numbers.

    Args:
        **kwargs: See :class:`mmengine.optim.OptimWrapper`.
    """

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        """Autocast around the forward pass."""
        device = next(model.parameters()).device.type
        with (
            super().optim_context(model),
            torch.autocast(device, dtype=torch.bfloat16),
        ):
            yield
