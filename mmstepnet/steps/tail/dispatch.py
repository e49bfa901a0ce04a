"""The door of the fused tail: whether a step may take it, and with what."""

import sys
import warnings
from collections.abc import Callable, Iterable
from functools import cache
from types import ModuleType
from typing import NamedTuple

import torch
import torch.nn as nn
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.modules import module as every

from mmstepnet.attentions import FoldedStepNet, StepNet
from mmstepnet.attentions.base import normalises_by_batch
from mmstepnet.torch_version import is_backward, is_transformed

from ..checkpoint import decide
from . import aten
from .formulas import Running, TailSpec
from .function import Tail

PLAIN = Tensor, nn.Parameter
"""Tensors that are nothing else: no proxies, fakes or wrappers."""

METHODS = {'forward', 'gate', 'pooled'}
"""What somebody could set on a gate to make it another."""

GATES = StepNet, FoldedStepNet
BATCH_NORMS = nn.BatchNorm2d, nn.BatchNorm1d
"""Classes exactly: subclasses, as IEBN, compute something else."""


class fused:
    """Switch the fused residual step on or off.

    It is on by default on CPUs. On CUDA, where its kernels have not been
    measured yet, ``fused(True)`` switches it on. Works like
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

    mode: bool | None = None

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
    if fused.mode is None:
        return device == 'cpu'
    return fused.mode and device in ('cpu', 'cuda')


def fused_step(step: nn.Module, x: Tensor, branch: Tensor,
               norm: nn.Module | None) -> Tensor | None:
    """Take a residual step by the fused path.

    Args:
        step (ResidualStep): The module that takes the step.
        x (Tensor): State x_t, (N, C, H, W).
        branch (Tensor): Output of the branch's last convolution, likewise.
        norm (nn.Module, optional): The norm behind it.

    Returns:
        Tensor: State x_{t+1}, or None where the reference path is right.
    """
    args = None if is_transformed() else read_tail(step, x, branch, norm)
    serves = decide(lambda: args is not None and is_fused(x.device.type)
                    and are_as_made(step, norm) and not is_watched(step))
    passes = passes_for(branch) if serves and args is not None else None
    return passes and Tail.apply(passes, *args)


class NormParts(NamedTuple):
    """What the fused path takes of a norm: (C,) each, or None."""

    kind: tuple[str, float, float | None] = ('none', 0., None)
    """Kind, epsilon and momentum, as in :class:`TailSpec`."""
    running: Running = Running()
    weight: Tensor | None = None
    bias: Tensor | None = None


def read_tail(step: nn.Module, x: Tensor, branch: Tensor,
              norm: nn.Module | None) -> tuple | None:
    """What :class:`Tail` is given; None where it does not know a part.

    It knows StepNet with both inputs, or a folded one; a BN with all its
    tensors, torchvision's frozen one, or none; dense floating maps alike.

    Returns:
        tuple: :class:`TailSpec`, both norms' :class:`Running`, x, branch and
        the parameters, as in :class:`.formulas.Learned`.
    """
    gate = step._modules.get('attention')
    if not (type(gate) in GATES and type(x) in PLAIN and type(branch) in PLAIN
            and branch.is_floating_point() and x.dtype == branch.dtype
            and x.device == branch.device and x.layout == torch.strided
            and branch.layout == torch.strided and x.shape == branch.shape
            and branch.ndim == 4 and branch.numel() > 0
            and gate.channels == branch.shape[1]):
        return None
    if type(norm) is nn.BatchNorm1d:
        return None  # the reference path raises the error
    first = read_norm(norm, branch, branch.numel() // gate.channels,
                      _takes_batch(norm))
    learned = pair, offset = _get(gate, 'pair_weight'), _get(gate, 'ie_bias')
    slope, second = None, NormParts()
    if type(gate) is StepNet:
        bn, slope = gate._modules['bn'], _get(gate, 'ie_weight')
        if gate.inputs != 'both' or type(bn) is not nn.BatchNorm1d:
            return None
        second = read_norm(bn, branch, len(x), normalises_by_batch(gate, bn))
        learned += slope,
    if first is None or second is None or not _are_plain(learned):
        return None
    spec = TailSpec(*first.kind, *second.kind, gate.scale,
                    type(step.activation) is nn.ReLU)
    return (spec, first.running, second.running, x, branch, first.weight,
            first.bias, pair, second.weight, second.bias, slope, offset)


def read_norm(norm: nn.Module | None, branch: Tensor, values: int,
              batch: bool) -> NormParts | None:
    """Read a norm over so many values a channel; None if it is not known."""
    if norm is None or type(norm) is nn.Identity:
        return NormParts()
    if type(norm) not in BATCH_NORMS and type(norm) not in _frozen_norms():
        return None
    affine = _get(norm, 'weight'), _get(norm, 'bias')
    if not _are_plain(affine) or len(affine[0]) != branch.shape[1]:
        return None
    running = Running(_get(norm, 'running_mean'), _get(norm, 'running_var'))
    if not batch:
        kind = 'running', norm.eps, None
        return (NormParts(kind, running, *affine)
                if _are_plain(running[:2]) else None)
    if values < 2:
        return None  # the reference path raises the error
    if not (norm.training and norm.track_running_stats):
        return NormParts(('batch', norm.eps, None), Running(), *affine)
    running = running._replace(count=_get(norm, 'num_batches_tracked'))
    if norm.momentum is None or not _are_plain(running):
        return None
    if is_backward():  # a checkpoint's second run
        return NormParts(('batch', norm.eps, None), Running(), *affine)
    return NormParts(('batch', norm.eps, norm.momentum), running, *affine)


def _are_plain(tensors: Iterable[Tensor | None]) -> bool:
    return all(type(t) in PLAIN for t in tensors)


def _get(module: nn.Module, name: str) -> Tensor | None:
    """A module's tensor; looked up faster than PyTorch does."""
    found = module._parameters.get(name)
    if found is None:
        found = module._buffers.get(name)
    return getattr(module, name, None) if found is None else found


def _takes_batch(norm: nn.Module | None) -> bool:
    return type(norm) is nn.BatchNorm2d and (
        norm.training or _get(norm, 'running_mean') is None)


def are_as_made(step: nn.Module, norm: nn.Module | None) -> bool:
    """Whether all modules that are not called run what their class came with.

    It is asked at every step, for nobody tells when somebody sets a
    ``forward`` or a hook, on an object or on a class.
    """
    parts = step._modules
    gate, activation = parts['attention'], parts.get('activation')
    return (type(activation) in (nn.ReLU, nn.Identity)
            and type(parts.get('drop_path')) is nn.Identity
            and _is_as_made(gate) and not vars(gate).keys() & METHODS
            and _is_as_made(activation)
            and _is_as_made(parts['drop_path'])
            and (norm is None or _is_as_made(norm))
            and all(map(_is_as_made, gate._modules.values())))


def _is_as_made(module: nn.Module) -> bool:
    cls = type(module)
    return (cls.forward is _own_forward(cls)
            and 'forward' not in module.__dict__
            and not (module._forward_hooks or module._forward_pre_hooks
                     or module._backward_hooks
                     or module._backward_pre_hooks))


@cache
def _own_forward(cls: type) -> Callable | None:
    """The forward that a class came with; None if it was patched before."""
    owner = next(c for c in cls.__mro__ if 'forward' in vars(c))
    code = getattr(owner.forward, '__code__', None)
    file = sys.modules[owner.__module__].__file__
    return owner.forward if code and code.co_filename == file else None


def _frozen_norms() -> tuple[type, ...]:
    """Torchvision's BN of buffers, as its detectors use it, if imported."""
    ops = sys.modules.get('torchvision.ops.misc')
    return () if ops is None else (ops.FrozenBatchNorm2d, )


def is_watched(step: nn.Module) -> bool:
    """Whether somebody sees, traces or transforms operations or modules."""
    return bool(
        step._observers
        or torch._C._len_torch_dispatch_stack()
        or torch._C._len_torch_function_stack()
        or forward_ad._current_level >= 0
        or every._global_forward_hooks or every._global_forward_pre_hooks
        or every._global_backward_hooks
        or every._global_backward_pre_hooks)


def passes_for(maps: Tensor) -> ModuleType | None:
    """Module with the passes over such maps; None where none works."""
    if not maps.is_cuda or maps.dtype == torch.float64:
        return aten
    return _triton(maps.device)


@cache
def _triton(device: torch.device) -> ModuleType | None:
    """Triton's passes, where they build and run on a device."""
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
