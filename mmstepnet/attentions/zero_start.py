"""Layers that start at zero, by whoever's call of ``reset_parameters``.

Loops over all modules call those of an attention's children, too, before its
own or after.
"""

import torch.nn as nn
from torch import Tensor


class ZeroStart:
    """Layer of an attention whose weights start at zero.

    Not of an attention alone: transformers initialises each module by itself.
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
