"""Functions of tensors that PyTorch compiles when they are first called."""

import warnings
from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from functools import cached_property
from itertools import count
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from mmstepnet.torch_version import is_autocasting, is_compiling

from .kernels import compiles

_made = {}
_images = {}
_numbers = count()

ONE_KERNEL = {'split_reductions': False, 'unroll_reductions_threshold': 1}
"""Inductor's options for functions of small tensors on a GPU.

What sums over images, and what follows from the sum, become one kernel, if
the sizes are known. Several kernels would be there to fill a GPU, but these
tensors are too small for that, and a launch takes longer than any of them.
"""

BATCHES = 8
"""Numbers of images that have graphs of their own, as many as Dynamo keeps."""


class Compiled:
    """A function that is compiled for all sizes of its tensors.

    Where the compiler or the first run of what it made fails, it says so
    once and calls the function as it stands; so it does for what would be a
    graph more than Dynamo allows, and without a word where no compiler is
    expected or a dispatch mode wants to see the operations.

    Args:
        function (Callable): The function; its positional arguments are what
            the graphs depend on.
        dynamic (bool, optional): As of ``torch.compile``: None takes sizes
            for constant until they change. Defaults to True.
        options (dict, optional): Of Inductor. Defaults to None.
    """

    warm = False
    """Whether this process has compiled one."""

    def __init__(self, function: Callable, dynamic: bool | None = True,
                 options: dict[str, Any] | None = None):
        self.function = function
        self.dynamic, self.options = dynamic, options or {}
        self.ready = False
        self.broken = False

    @cached_property
    def compiled(self) -> Callable:
        # Dynamo keeps graphs, and limits their number, by code object, and
        # by a code's name which sizes change. It takes as long to import as
        # PyTorch, so not before it is wanted.
        function, code = self.function, self.function.__code__
        name = f'{function.__name__}_{next(_numbers)}'
        own = FunctionType(code.replace(co_name=name), function.__globals__,
                           name, function.__defaults__)
        options = dict(self.options)
        if hasattr(torch.compiler, 'skip_guard_on_globals_unsafe'):
            # Functions stay what they are. To look whether each does would
            # take a tenth of the time of a small step.
            options['guard_filter_fn'] = (
                torch.compiler.skip_guard_on_globals_unsafe)
        return torch.compile(own, dynamic=self.dynamic, fullgraph=True,
                             options=options)

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


def compiled_on_gpu(function: Callable, images: int, channels: int,
                    *key: Hashable) -> Compiled:
    """The compiled form of a function of (N, C) tensors on a GPU.

    A number of images, as of channels, has graphs of its own, with fewer
    kernels. Where more than ``BATCHES`` numbers come, the others share one
    for all sizes.

    Args:
        function (Callable): A module's function.
        images (int): N.
        channels (int): C.
        *key (Hashable): See :func:`compiled`.
    """
    key = function, *key
    seen = _images.setdefault((*key, channels), set())
    dynamic = True
    if images in seen or len(seen) < BATCHES:
        seen.add(images)
        key, dynamic = (*key, images, channels), None
    if key not in _made:
        _made[key] = Compiled(function, dynamic=dynamic, options=ONE_KERNEL)
    return _made[key]
