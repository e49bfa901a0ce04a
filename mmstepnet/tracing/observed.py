"""The protocol of modules that take a residual step by themselves."""

from collections import OrderedDict
from collections.abc import Callable

import torch.nn as nn
from torch import Tensor
from torch.utils.hooks import RemovableHandle


class ObservedStep(nn.Module):
    """A module that tells its observers of each step that it takes.

    Whoever follows a pass need not know more of it: what it computes is not
    looked at, operation by operation.
    """

    adds = True
    """Whether it returns x_{t+1}. Else it returns f ⊗ Δt, and the block that
    it stands in adds."""

    def __init__(self) -> None:
        super().__init__()
        self._observers: OrderedDict[int, Observer] = OrderedDict()

    def observe(self, observer: 'Observer') -> RemovableHandle:
        """Register ``observer(self, x, f, step, out)``.

        It is called in every forward pass with x_t, f(x_t), the attention
        value (None for a plain block) and what the module returns; x_{t+1}
        before the activation is x + f * step. Tensors are overwritten by
        later layers: reduce them inside the observer.

        Returns:
            RemovableHandle: Its ``remove()`` ends the observation.
        """
        handle = RemovableHandle(self._observers)
        self._observers[handle.id] = observer
        return handle

    def report(
        self, x: Tensor, f: Tensor, step: Tensor | None, out: Tensor
    ) -> None:
        """Tell all observers of a step that was taken, see :meth:`observe`."""
        for observer in tuple(self._observers.values()):
            observer(self, x, f, step, out)

    def __getstate__(self) -> dict:
        """Leave observers out of copies: an EMA model is not observed."""
        return {**self.__dict__, '_observers': OrderedDict()}


Observer = Callable[
    [ObservedStep, Tensor, Tensor, Tensor | None, Tensor], None
]
