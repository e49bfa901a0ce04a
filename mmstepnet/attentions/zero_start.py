"""Layers that start at zero, whoever calls their ``reset_parameters``.

Loops over all modules call it before the attention's own, or after it.
"""

import torch.nn as nn
from torch import Tensor


class ZeroStart:
    """Layer of an attention whose weights start at zero.

    transformers initialises each module by itself, so the layer knows its
    start.
    """

    weight: Tensor
    bias: Tensor | None

    def reset_parameters(self) -> None:
        """Bring all to its start, weight and bias to zero."""
        super().reset_parameters()  # type: ignore[misc], the layer's
        nn.init.zeros_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class ZeroLinear(ZeroStart, nn.Linear):
    """Linear layer that starts at zero."""


class ZeroConv1d(ZeroStart, nn.Conv1d):
    """Convolution that starts at zero."""


class ZeroBatchNorm1d(ZeroStart, nn.BatchNorm1d):
    """BN whose output starts at zero."""


class ZeroBatchNorm2d(ZeroStart, nn.BatchNorm2d):
    """BN whose output starts at zero."""
