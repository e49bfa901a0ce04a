"""Functions of tensors that PyTorch compiles when they are first called."""

import warnings
from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from functools import cached_property
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from mmstepnet.torch_version import is_autocasting, is_compiling

from .kernels import compiles

_made = {}


class Compiled:
    """A function that is compiled for all sizes of its tensors.

    Where the compiler or the first run of what it made fails, it says so
    once and calls the function as it stands; so it does for what would be a
    graph more than Dynamo allows, and without a word where no compiler is
    expected or a dispatch mode wants to see the operations.

    Args:
        function (Callable): The function; its positional arguments are what
            the graphs depend on.
    """

    warm = False
    """Whether this process has compiled one."""

    def __init__(self, function: Callable):
        self.function = function
        self.ready = False
        self.broken = False

    @cached_property
    def compiled(self) -> Callable:
        # Dynamo keeps graphs, and limits their number, by code object. It
        # takes as long to import as PyTorch, so not before it is wanted.
        function, code = self.function, self.function.__code__
        own = FunctionType(code.replace(), function.__globals__,
                           function.__name__, function.__defaults__)
        return torch.compile(own, dynamic=True, fullgraph=True)

    def __call__(self, device: torch.device, changed: Sequence[Tensor],
                 *args) -> Any:
        """Call the function without gradients and without autocast.

        Args:
            device (torch.device): Where its tensors are.
            changed (Sequence[Tensor]): Those that it writes into.
            *args: Its arguments.
        """
        full = (torch.autocast(device.type, enabled=False)
                if is_autocasting(device.type) else nullcontext())
        with torch.no_grad(), full:
            if (self.broken or is_compiling() or not compiles(device.type)
                    or torch._C._len_torch_dispatch_stack()):
                return self.function(*args)
            if not self.ready:
                return self._first(changed, args)
            try:
                return self.compiled(*args)
            except (torch._dynamo.exc.TorchDynamoException,
                    torch._dynamo.exc.FailOnRecompileLimitHit):
                # One graph more, which could not be had.
                return self.function(*args)

    def _first(self, changed: Sequence[Tensor], args: tuple) -> Any:
        copies = [t.clone() for t in changed]
        try:
            # Else each constant would become a tensor, at every call.
            with torch._dynamo.config.patch(specialize_float=True):
                found = self.compiled(*args)
            self.ready = Compiled.warm = True
            return found
        except Exception as error:
            for tensor, copy in zip(changed, copies):
                tensor.copy_(copy)
            found = self.function(*args)  # may well raise the same
            self.broken = True
            warnings.warn(
                'the residual step runs uncompiled and is slower, because '
                f'PyTorch could not compile it: {error}', stacklevel=2)
            return found


def compiled(function: Callable, *key: Hashable) -> Compiled:
    """The compiled form of a function, one for each key.

    Args:
        function (Callable): A module's function.
        *key (Hashable): What its calls are told apart by, so that they do
            not share the number of graphs that Dynamo allows.
    """
    key = function, *key
    if key not in _made:
        _made[key] = Compiled(function)
    return _made[key]
