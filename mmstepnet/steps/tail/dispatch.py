"""The door of the fused tail: whether a step may take it, and with what."""

import warnings
from functools import cache
from types import ModuleType
from typing import Any

import torch
import torch.nn as nn
from torch import Tensor

from mmstepnet.attentions import FoldedStepNet, StepNet
from mmstepnet.attentions.base import normalises_by_batch
from mmstepnet.precision import accumulation_dtype
from mmstepnet.torch_version import is_compiling, is_transformed

from . import aten
from .by_image import scale_by_image
from .formulas import Norm, TailSpec, constants
from .function import Tail, evaluate
from .reading import PLAIN, are_all_hooked, are_plain, is_as_made, read_norm

FEWEST_VALUES = 2**16
"""Of a map on a CPU: over smaller ones the reference path is as fast or
faster, for what it takes is the time of its calls."""

GATES = {StepNet: nn.BatchNorm1d, FoldedStepNet: type(None)}
"""Gates and their norms. Classes exactly: subclasses, as IEBN of BN, compute
something else."""


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


def fused_step(step: Any, x: Tensor, branch: Tensor,
               norm: nn.Module | None) -> Tensor | None:
    """Take a residual step together with its norm, and report it.

    Args:
        step (ResidualStep): The module that takes the step.
        x (Tensor): State x_t, (N, C, H, W).
        branch (Tensor): Output of the branch's last convolution, likewise.
        norm (nn.Module, optional): The norm behind it.

    Returns:
        Tensor: State x_{t+1}, or None where the reference path is right.
    """
    if not fused.mode:
        return None
    if is_compiling():
        residual = None if step._observers else scale_by_image(
            step.attention, x, branch, norm)
        return None if residual is None else step.activation(
            x + step.drop_path(residual))
    tail = None if is_transformed() else read_tail(step, x, branch, norm)
    passes = None if tail is None else passes_for(branch)
    if tail is None or passes is None:
        return None
    spec, *tensors = tail
    out = Tail.apply(passes, spec, *tensors)
    if step._observers:
        with torch.no_grad():
            f, dt, _ = evaluate(spec, spec.running, *tensors)
        step.report(x, f, dt, out)
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
    parts: Any = map(step._modules.get, (
        'attention', 'activation', 'drop_path'))
    gate, relu, drop_path = parts
    if not (type(gate) in GATES and type(x) in PLAIN and type(branch) in PLAIN
            and branch.is_floating_point() and x.dtype == branch.dtype
            and x.device == branch.device and x.shape == branch.shape
            and x.layout == branch.layout == torch.strided
            and branch.ndim == 4 and branch.numel() > 0):
        return None
    bn, channels = gate._modules.get('bn'), x.shape[1]
    own = {**gate.__dict__, **gate._parameters}
    pair = own['pair_weight']
    if not (type(bn) is GATES[type(gate)] and pair.shape == (channels, 2)
            and type(relu) in (nn.ReLU, nn.Identity)
            and type(drop_path) is nn.Identity
            and all(map(is_as_made, (gate, relu, drop_path)))
            and not are_all_hooked()):
        return None
    zero, one = constants(channels, accumulation_dtype(x.dtype), x.device)
    first = second = Norm(False, 0., zero, one), one, zero
    if norm is not None and not (
            type(norm) is nn.Identity and is_as_made(norm)):
        first = read_norm(norm, nn.BatchNorm2d, channels,
                          x.numel() // channels)
    if bn is not None:
        second = read_norm(bn, nn.BatchNorm1d, channels, len(x),
                           normalises_by_batch(gate, bn))
    learned = pair, own.get('ie_weight', one), own['ie_bias']
    if first is None or second is None or not are_plain(learned):
        return None
    return (TailSpec(first[0], second[0], own['scale'],
                     type(relu) is nn.ReLU),
            x, branch, *first[1:], pair, *second[1:], *learned[1:])


def passes_for(maps: Tensor) -> ModuleType | None:
    """Module with the passes over such maps; None where none works."""
    if maps.is_cuda:
        known = maps.dtype != torch.float64 and torch.version.hip is None
        return _triton(maps.device) if known else None
    large = maps.numel() >= FEWEST_VALUES
    return aten if maps.device.type == 'cpu' and large else None


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
