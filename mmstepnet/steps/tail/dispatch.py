"""The door of the fused tail: whether a step may take it, and with what."""

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
from mmstepnet.torch_version import is_compiling, is_exporting, is_transformed

from . import aten
from .by_image import scale_by_image
from .function import Norm, Tail, TailSpec, evaluate

PLAIN = {Tensor, nn.Parameter}
"""Tensors that are nothing else: no proxies, fakes or wrappers."""

PARTS = (StepNet, FoldedStepNet), (nn.ReLU, nn.Identity), (nn.Identity, )
"""Attentions, activations and drop paths that are known. Classes exactly:
subclasses compute something else."""

FORWARDS = {kind: kind.forward for kinds in (
    *PARTS, (nn.BatchNorm1d, nn.BatchNorm2d)) for kind in kinds}
"""What known classes came with."""

FROZEN = 'torchvision.ops.misc', 'FrozenBatchNorm2d'
"""Torchvision's BN of buffers, as its detectors use it."""

FEWEST_VALUES = 2**16
"""Of a map on a CPU: over smaller ones the reference path is as fast or
faster, for what it takes is the time of its calls."""


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
    if not fused.mode or is_transformed() or are_all_hooked():
        return None
    if is_compiling():
        # Exporters know BN and pooling by their names.
        known = not (is_exporting() or step._observers) and isinstance(
            getattr(step.attention, 'pooled', None), tuple)
        read = read_norm(norm, nn.BatchNorm2d, branch.shape[1],
                         branch[:, 0].numel()) if known else None
        if read is None:
            return None
        residual = scale_by_image(step.attention, x, branch, *read)
        return step.activation(x + step.drop_path(residual))
    tail = read_tail(step, x, branch, norm)
    if tail is None:
        return None
    out = Tail.apply(*tail)
    if step._observers:
        with torch.no_grad():
            f, dt, _ = evaluate(*tail[1:])
        step.report(x, f, dt, out)
    return out


def read_tail(step: Any, x: Tensor, branch: Tensor,
              norm: nn.Module | None) -> tuple | None:
    """What :class:`Tail` is given; None where it does not know a part.

    It knows StepNet with both inputs, or a folded one; a BN with all its
    tensors, torchvision's frozen one, or none; dense floating maps alike.

    Returns:
        tuple: Passes, :class:`TailSpec`, x, branch and the parameters, as
        :class:`Tail` has them.
    """
    parts = gate, relu, _ = step.attention, step.activation, step.drop_path
    if not (all(type(part) in kinds and is_as_made(part)
                for part, kinds in zip(parts, PARTS))
            and type(x) in PLAIN and type(branch) in PLAIN
            and branch.is_floating_point() and x.dtype == branch.dtype
            and x.device == branch.device and x.shape == branch.shape
            and branch.ndim == 4 and branch.numel() > 0):
        return None
    passes, channels = passes_for(branch), x.shape[1]
    zero, one = aten.constants(channels, accumulation_dtype(x.dtype), x.device)
    first = second = Norm(False, 0., zero, one), one, zero
    if norm is not None and not (
            type(norm) is nn.Identity and is_as_made(norm)):
        first = read_norm(norm, nn.BatchNorm2d, channels,
                          x.numel() // channels)
    pair, weight = gate.pair_weight, one
    if type(gate) is StepNet:
        weight = gate.ie_weight
        second = read_norm(gate.bn, nn.BatchNorm1d, channels, len(x), gate)
    if (passes is None or first is None or second is None
            or not are_plain((pair, weight, gate.ie_bias))
            or pair.shape != (channels, 2)):
        return None
    spec = TailSpec(first[0], second[0], gate.scale, type(relu) is nn.ReLU)
    return (passes, spec, x, branch, *first[1:], pair, *second[1:], weight,
            gate.ie_bias)


def read_norm(norm: Any, kind: type, channels: int, values: int,
              gate: Any = None) -> tuple[Norm, Tensor, Tensor] | None:
    """What a BN does, its weight and its bias; None where it is not known.

    Nor where the reference path raises an error.

    Args:
        norm (nn.Module): The norm.
        kind (type): Kind of BN that it has to be, or torchvision's frozen one.
        channels (int): Channels that it is given.
        values (int): Values of each.
        gate (nn.Module, optional): The attention that it is in, which decides
            whether it takes the batch's statistics. None asks its mode.
    """
    frozen = (type(norm).__module__, type(norm).__name__) == FROZEN
    if not (frozen or isinstance(norm, kind)) or not is_as_made(norm):
        return None
    kept = [norm.running_mean, norm.running_var]
    batch = (normalises_by_batch(gate, norm) if gate is not None else
             not frozen and (norm.training or kept[0] is None))
    moved = batch and norm.training and norm.track_running_stats
    if moved:
        kept.append(norm.num_batches_tracked)
    elif batch:
        kept.clear()
    momentum = norm.momentum if moved else 0.
    if (momentum is None or batch and values < 2
            or not are_plain((norm.weight, norm.bias, *kept))
            or norm.weight.shape[0] != channels):
        return None
    how = Norm(batch, norm.eps, *kept, momentum=momentum)
    return how, norm.weight, norm.bias


def are_plain(vectors: Iterable[Any]) -> bool:
    """Whether they are dense tensors and nothing else."""
    return all(type(t) in PLAIN and t.is_contiguous() for t in vectors)


def is_as_made(module: nn.Module) -> bool:
    """Whether a module runs what its class came with, and nobody hooks it.

    It is asked at every step, for nobody tells when somebody sets a
    ``forward`` or a hook, on an object or on a class.
    """
    cls = type(module)
    known = next((k for k in cls.__mro__ if k in FORWARDS), None)
    hooks = (*module._forward_hooks.values(),
             *module._forward_pre_hooks.values())
    return ((known is None or cls.forward is FORWARDS[known])
            and not any(name in module.__dict__
                        for name in ('forward', 'gate', 'pooled'))
            and not (module._backward_hooks or module._backward_pre_hooks)
            and all(getattr(hook, 'only_looks', False) for hook in hooks))


def are_all_hooked() -> bool:
    """Whether somebody hooks all modules."""
    return bool(
        every._global_forward_hooks or every._global_forward_pre_hooks
        or every._global_backward_hooks
        or every._global_backward_pre_hooks)


def only_looks(hook: Callable) -> Callable:
    """Mark a hook that need not be called for modules in a fused step.

    So who measures does not change the path of a step, which a checkpoint
    may take again when nobody measures.
    """
    vars(hook)['only_looks'] = True
    return hook


def passes_for(maps: Tensor) -> ModuleType | None:
    """Module with the passes over such maps; None where none works."""
    if maps.is_cuda and maps.dtype != torch.float64 and not torch.version.hip:
        return _triton(maps.device)
    large = maps.numel() >= FEWEST_VALUES
    return aten if maps.device.type == 'cpu' and large else None


@cache
def _triton(device: torch.device) -> ModuleType | None:
    """Triton's passes, where they build, run and are right on a device."""
    try:
        from . import triton as passes
        check(passes, device)
    except Exception as error:  # no Triton 3, driver, compiler or headers
        warnings.warn(
            'the residual step takes the reference path on '
            f'{device}, because its Triton kernels failed: {error}',
            stacklevel=2)
        return None
    return passes


def check(passes: ModuleType, device: torch.device) -> None:
    """Compare the passes of a device with ATen's, on small maps.

    Raises:
        AssertionError: Results or gradients differ.
    """
    spec = TailSpec(Norm(True, 1e-5), Norm(True, 1e-5), 1.5, True)
    random, results = torch.Generator().manual_seed(0), []
    tensors = [torch.randn(shape, generator=random, device='cpu')
               for shape in (*[(2, 5, 3, 3)] * 3, *[(5, )] * 2, (5, 2),
                             *[(5, )] * 4)]
    for own, place in ((passes, device), (aten, 'cpu')):
        x, c, grad, *learned = (t.to(place) for t in tensors)
        out, saved = own.forward(spec, x, c, learned)
        d_x, d_c, d_learned = own.backward(spec, grad, out, c, learned, saved)
        results.append([t.cpu() for t in (out, d_x, d_c, *d_learned)])
    torch.testing.assert_close(*results, rtol=1e-3, atol=1e-3)
