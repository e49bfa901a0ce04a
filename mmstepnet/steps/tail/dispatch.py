"""The door of the fused tail: whether a step may take it, and with what."""

import sys
import warnings
from collections.abc import Callable, Iterable
from functools import cache
from types import ModuleType
from typing import Any

import torch
import torch.nn as nn
from torch import Tensor
from torch.nn.modules import module as every

from mmstepnet.attentions import FoldedStepNet, StepNet
from mmstepnet.attentions.base import normalises_by_batch
from mmstepnet.precision import accumulation_dtype
from mmstepnet.torch_version import (
    NORMALISES_HALF_ON_CPU,
    is_compiling,
    is_transformed,
)

from . import aten
from .formulas import Norm, TailSpec, constants
from .function import Tail, terms

PLAIN = {Tensor, nn.Parameter}
"""Tensors that are nothing else: no proxies, fakes or wrappers."""

METHODS = {'forward', 'gate', 'pooled'}
"""What somebody could set on an object to make it another."""

FEWEST_VALUES = 2**16
"""Of a map on a CPU: over smaller ones the reference path is as fast or
faster, for what it takes is the time of its calls."""

GATES = {StepNet: nn.BatchNorm1d, FoldedStepNet: type(None)}
"""Gates and their norms. Classes exactly: subclasses, as IEBN of BN, compute
something else."""

FROZEN = 'torchvision.ops.misc.FrozenBatchNorm2d'
"""Torchvision's BN of buffers, as its detectors use it."""


class fused:
    """Switch the fused residual step on or off.

    It is on by default, on CPUs and on NVIDIA GPUs. Works like
    ``torch.set_grad_enabled``: as a call from there on, as a context manager
    inside it.

    Args:
        mode (bool): Whether :class:`ResidualStep` may take the fused path.

    Example:
        >>> from mmstepnet import steps
        >>> with steps.fused(False):
        ...     steps.is_fused()
        False
    """

    mode: bool = True

    def __init__(self, mode: bool):
        self.previous = fused.mode
        fused.mode = bool(mode)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc) -> None:
        fused.mode = self.previous


def is_fused(device: str = 'cpu') -> bool:
    """Whether :class:`ResidualStep` may take the fused path.

    Args:
        device (str): Type of the device. Defaults to ``'cpu'``.
    """
    return fused.mode and (
        device == 'cpu' or device == 'cuda' and torch.version.hip is None)


def fused_step(step: nn.Module, x: Tensor, branch: Tensor,
               norm: nn.Module | None) -> Tensor | None:
    """Take a residual step by the fused path, and report it.

    Args:
        step (ResidualStep): The module that takes the step.
        x (Tensor): State x_t, (N, C, H, W).
        branch (Tensor): Output of the branch's last convolution, likewise.
        norm (nn.Module, optional): The norm behind it.

    Returns:
        Tensor: State x_{t+1}, or None where the reference path is right.
    """
    if is_compiling() or is_transformed():
        return None
    args = read_tail(step, x, branch, norm)
    if args is None or not is_fused(x.device.type):
        return None
    passes = passes_for(branch)
    if passes is None:
        return None
    out = Tail.apply(passes, *args)
    if step._observers:
        with torch.no_grad():
            step.report(x, *terms(args[0], args[0].running, *args[1:]), out)
    return out


def read_tail(step: nn.Module, x: Tensor, branch: Tensor,
              norm: nn.Module | None) -> tuple | None:
    """What :class:`Tail` is given; None where it does not know a part.

    It knows StepNet with both inputs, or a folded one; a BN with all its
    tensors, torchvision's frozen one, or none; dense floating maps alike.

    Returns:
        tuple: :class:`TailSpec`, x, branch and the parameters, as in
        :class:`.formulas.Parameters`.
    """
    gate: Any = step._modules.get('attention')
    if not (type(gate) in GATES and type(x) in PLAIN and type(branch) in PLAIN
            and branch.is_floating_point() and x.dtype == branch.dtype
            and x.device == branch.device and x.shape == branch.shape
            and x.layout == branch.layout == torch.strided
            and branch.ndim == 4 and branch.numel() > 0):
        return None
    own, channels = _attributes(gate), x.shape[1]
    bn, relu, drop_path = (gate._modules.get('bn'), *map(
        step._modules.get, ('activation', 'drop_path')))
    if not (type(bn) is GATES[type(gate)] and own['channels'] == channels
            and own.get('inputs', 'both') == 'both'
            and type(relu) in (nn.ReLU, nn.Identity)
            and type(drop_path) is nn.Identity
            and all(part is None or is_as_made(part)
                    for part in (gate, bn, norm, relu, drop_path))
            and not _hooks_everywhere()):
        return None
    zero, one = constants(channels, accumulation_dtype(x.dtype), x.device)
    first = second = Norm(False, 0., zero, one), one, zero
    if norm is not None and type(norm) is not nn.Identity:
        first = read_norm(norm, nn.BatchNorm2d, channels,
                          x.numel() // channels)
    if bn is not None:
        second = read_norm(bn, nn.BatchNorm1d, channels, len(x),
                           normalises_by_batch(gate, bn))
    if first is None or second is None:
        return None
    learned = (*first[1:], own['pair_weight'], *second[1:],
               own.get('ie_weight', one), own['ie_bias'])
    if not _are_plain(learned):
        return None
    spec = TailSpec(first[0], second[0], own['scale'], type(relu) is nn.ReLU)
    return spec, x, branch, *learned


def read_norm(norm: Any, kind: type, channels: int, values: int,
              batch: bool | None = None,
              ) -> tuple[Norm, Tensor | None, Tensor | None] | None:
    """What a BN over so many values a channel does, its weight and bias.

    None where it is not known, or where the reference path raises an error.
    ``batch`` is whether it takes the batch's statistics; None asks the norm.
    """
    frozen = f'{type(norm).__module__}.{type(norm).__name__}' == FROZEN
    if not frozen and not (isinstance(norm, kind)
                           and type(norm).forward is kind.forward):
        return None
    own = _attributes(norm)
    weight, bias, mean, var, count = map(own.get, (
        'weight', 'bias', 'running_mean', 'running_var',
        'num_batches_tracked'))
    if weight is None or weight.shape[0] != channels:
        return None
    if batch is None:
        batch = not frozen and (norm.training or mean is None)
    if not batch:
        return (Norm(False, norm.eps, mean, var), weight, bias) if (
            _are_plain((mean, var))) else None
    if values < 2:
        return None
    if not (norm.training and norm.track_running_stats):
        return Norm(True, norm.eps), weight, bias
    if norm.momentum is None or not _are_plain((mean, var, count)):
        return None
    return (Norm(True, norm.eps, mean, var, count, norm.momentum), weight,
            bias)


def _are_plain(vectors: Iterable[Any]) -> bool:
    """Whether they are dense tensors and nothing else."""
    return (PLAIN.issuperset(map(type, vectors))
            and all(map(Tensor.is_contiguous, vectors)))


def _attributes(module: nn.Module) -> dict[str, Any]:
    """A module's tensors and numbers; found faster than PyTorch does."""
    return {**vars(module), **module._buffers, **module._parameters}


def is_as_made(module: nn.Module) -> bool:
    """Whether a module runs what its class came with, and nobody hooks it.

    It is asked at every step, for nobody tells when somebody sets a
    ``forward`` or a hook, on an object or on a class.
    """
    cls = type(module)
    hooks = (*module._forward_hooks.values(),
             *module._forward_pre_hooks.values())
    return (cls.forward is _own_forward(cls)
            and METHODS.isdisjoint(vars(module))
            and not (module._backward_hooks or module._backward_pre_hooks)
            and all(getattr(hook, 'only_looks', False) for hook in hooks))


def only_looks(hook: Callable) -> Callable:
    """Mark a hook that need not be called for modules in a fused step.

    So who measures does not change the path of a step, which a checkpoint
    may take again when nobody measures.
    """
    vars(hook)['only_looks'] = True
    return hook


@cache
def _own_forward(cls: type) -> Callable | None:
    """The forward that a class came with; None if it was patched before."""
    owner = next(c for c in cls.__mro__ if 'forward' in vars(c))
    code = getattr(owner.forward, '__code__', None)
    # A notebook's classes have no file, a loaded script's perhaps no module.
    file = getattr(sys.modules.get(owner.__module__), '__file__', None)
    return owner.forward if code and code.co_filename == file else None


def _hooks_everywhere() -> bool:
    """Whether somebody hooks all modules."""
    return bool(
        every._global_forward_hooks or every._global_forward_pre_hooks
        or every._global_backward_hooks
        or every._global_backward_pre_hooks)


def passes_for(maps: Tensor) -> ModuleType | None:
    """Module with the passes over such maps; None where none works."""
    if maps.is_cuda:
        known = maps.dtype != torch.float64
        return _triton(maps.device) if known else None
    half = maps.dtype == torch.float16
    if maps.numel() < FEWEST_VALUES or half and not NORMALISES_HALF_ON_CPU:
        return None
    return aten


@cache
def _triton(device: torch.device) -> ModuleType | None:
    """Triton's passes, where they build, run and are right on a device."""
    try:
        from . import triton as passes
        passes.try_on(device)
    except Exception as error:  # no Triton 3, driver, compiler or headers
        warnings.warn(
            'the residual step takes the reference path on '
            f'{device}, because its Triton kernels failed: {error}',
            stacklevel=2)
        return None
    return passes
