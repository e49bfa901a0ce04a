"""Measuring a residual block of which nothing is known but that it is one."""

from collections.abc import Callable

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .probes import Probe, Report, drops, is_drop_path
from .readings import StepNorms
from .sample_norms import norm, norm_and_distance

ACTIVATIONS = {
    F.relu, F.relu6, F.leaky_relu, F.prelu, F.elu, F.celu, F.selu, F.gelu,
    F.silu, F.mish, F.softplus, F.hardtanh, F.hardswish, F.hardsigmoid,
    F.hardshrink, F.softshrink, F.tanhshrink, F.logsigmoid, F.softsign,
    F.rrelu, F.threshold, torch.relu, torch.relu_, torch.sigmoid,
    torch.sigmoid_, torch.tanh, torch.tanh_, Tensor.relu, Tensor.relu_,
    Tensor.sigmoid, Tensor.sigmoid_, Tensor.tanh, Tensor.tanh_
}
"""Activations as functions, which their modules call."""


class UnknownBlockProbe(Probe):
    """Measures any block by its input, its output and its last activation.

    x_t is the block's first argument, x_{t+1} the input of the activation
    that returns the block's output (the output itself where none does), and
    Δt = 1. Activations are seen as modules and as functions.
    """

    def __init__(self, name: str, block: nn.Module, report: Report):
        super().__init__(name, block, report)
        self.mode = None
        self.reset()

    def reset(self) -> None:
        """See :class:`Probe`."""
        super().reset()
        if self.mode is not None:
            self.mode.__exit__(None, None, None)
        self.x = self.before = self.after = self.stamp = self.mode = None

    def begin(self, x: Tensor) -> None:
        """See :class:`Probe`."""
        for name, module in self.block.named_modules():
            if is_drop_path(module) and drops(module):
                raise ValueError(
                    f'block {self.name} ({type(self.block).__name__}) drops '
                    f'paths at random by its {name}; what step it proposes '
                    'cannot be told from what it returns. Record it in eval '
                    'mode')
        self.x = x.clone()  # the block may add to it in place
        self.mode = _SeeActivations(self._before, self._after)
        self.mode.__enter__()

    def end(self, out: Tensor) -> None:
        """See :class:`Probe`."""
        self.check_state('output', out, self.x)
        x_norm, returned = norm_and_distance(self.x, out)
        # Something may have been added to the activation's result in place.
        last = self.after is out and bool((self.stamp == _stamp(out)).all())
        change = self.before if last else returned
        self.report(
            self.name,
            StepNorms(x_norm, change, change, returned,
                      torch.ones_like(change)))

    def _before(self, value: Tensor) -> None:
        # The activation may work in place: now or never.
        self.before = (
            norm_and_distance(self.x, value)[1]
            if value.shape == self.x.shape else None)

    def _after(self, out: Tensor) -> None:
        self.after, self.stamp = out, _stamp(out)


class _SeeActivations(TorchFunctionMode):
    """Shows what goes into every activation and what comes out."""

    def __init__(self, before: Callable[[Tensor], None],
                 after: Callable[[Tensor], None]):
        super().__init__()
        self.before, self.after = before, after

    def __torch_function__(self,
                           func: Callable,
                           types: tuple,
                           args: tuple = (),
                           kwargs: dict | None = None) -> object:
        kwargs = kwargs or {}
        if func not in ACTIVATIONS:
            return func(*args, **kwargs)
        with torch.no_grad():
            self.before(args[0] if args else kwargs['input'])
        out = func(*args, **kwargs)
        with torch.no_grad():
            self.after(out)
        return out


def _stamp(value: Tensor) -> Tensor:
    """Differs after a change in place."""
    if value.is_inference():  # has no version
        return norm(value)
    return torch.tensor(value._version)
