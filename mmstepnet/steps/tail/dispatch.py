"""The door of the fused tail: whether a step may take it, and with what."""

import warnings
from collections.abc import Iterable
from contextlib import ExitStack
from functools import cache
from types import ModuleType, NoneType
from typing import Any, NamedTuple

import torch
import torch.nn as nn
from torch import Tensor

from mmstepnet.attentions import FoldedStepNet, StepNet
from mmstepnet.attentions.base import normalises_by_batch
from mmstepnet.torch_version import is_compiling, is_exporting, is_transformed

from . import aten
from .by_image import scale_by_image
from .function import Norm, Tail, TailSpec, evaluate

PLAIN = {Tensor, nn.Parameter}
"""Tensors that are nothing else: no proxies, fakes or wrappers."""

PARTS = (
    (StepNet, FoldedStepNet),
    (nn.ReLU, nn.Identity, NoneType),
    (nn.Identity, NoneType),
)
"""Attentions, activations and drop paths that are known. Classes exactly:
subclasses compute something else."""

FROZEN = 'torchvision.ops.misc', 'FrozenBatchNorm2d'
"""Torchvision's BN of buffers, as its detectors use it."""

FEWEST_VALUES = 2**16
"""Of a map on a CPU: over smaller ones the reference path is as fast or
faster, for what it takes is the time of its calls."""


class fused(ExitStack):
    """Switch the fused residual step on or off.

    It is on by default, on CPUs and on NVIDIA GPUs. Works like
    ``torch.set_grad_enabled``: as a call from there on, as a context manager
    inside it.

    Args:
        mode (bool): Whether :class:`ResidualStep` may take the fused path.

    Example:
        >>> from mmstepnet import steps
        >>> with steps.fused(False):
        ...     steps.fused.mode
        False
    """

    mode: bool = True

    def __init__(self, mode: bool):
        super().__init__()
        self.callback(setattr, fused, 'mode', fused.mode)
        fused.mode = bool(mode)


class ByHand(NamedTuple):
    """What :class:`Tail` is given beside the maps."""

    passes: ModuleType
    spec: TailSpec
    learned: tuple[Tensor, ...]


class ByImage(NamedTuple):
    """What a compiler needs of a norm, see :mod:`.by_image`."""

    norm: Norm
    weight: Tensor
    bias: Tensor


def read_tail(
    step: Any,
    x: Tensor,
    branch: Tensor,
    norm: nn.Module | None,
    activation: Any,
    drop_path: Any,
) -> ByHand | ByImage | None:
    """How a step can be taken together with its norm.

    Args:
        step (ResidualStep): The module that takes the step.
        x (Tensor): State x_t, (N, C, H, W).
        branch (Tensor): Output of the branch's last convolution, likewise.
        norm (nn.Module, optional): The norm behind it.
        activation (Callable, optional): Applied to the sum.
        drop_path (Callable, optional): Applied to the scaled residual.

    Returns:
        ByHand | ByImage: What :func:`take_tail` needs, or None where the
        reference path is right.
    """
    if not fused.mode or is_transformed():
        return None
    if not is_compiling():
        return _read_by_hand(
            (step.attention, activation, drop_path), x, branch, norm
        )
    # Exporters know BN and pooling by their names.
    known = not (is_exporting() or step._observers) and isinstance(
        getattr(step.attention, 'pooled', None), tuple
    )
    read = read_norm(norm, branch) if known else None
    return None if read is None else ByImage(*read)


def take_tail(
    tail: ByHand | ByImage,
    step: Any,
    x: Tensor,
    branch: Tensor,
    activation: Any,
    drop_path: Any,
) -> Tensor:
    """Take a residual step together with its norm, and report it.

    Args:
        tail (ByHand | ByImage): What :func:`read_tail` has found for what
            follows.
        step (ResidualStep): The module that takes the step.
        x (Tensor): State x_t, (N, C, H, W).
        branch (Tensor): Output of the branch's last convolution, likewise.
        activation (Callable, optional): Applied to the sum.
        drop_path (Callable, optional): Applied to the scaled residual.

    Returns:
        Tensor: State x_{t+1}.
    """
    if isinstance(tail, ByImage):
        residual = scale_by_image(step.attention, x, branch, *tail)
        residual = residual if drop_path is None else drop_path(residual)
        return x + residual if activation is None else activation(x + residual)
    out = Tail.apply(tail.passes, tail.spec, x, branch, *tail.learned)
    if step._observers:
        with torch.no_grad():
            _, (f, dt) = evaluate(tail.spec, x, branch, *tail.learned)
        step.report(x, f, dt, out)
    return out


def _read_by_hand(
    parts: tuple, x: Tensor, branch: Tensor, norm: nn.Module | None
) -> ByHand | None:
    """What :class:`Tail` is given; None where it does not know a part.

    It knows StepNet with both inputs, or a folded one; a BN with all its
    tensors, torchvision's frozen one, or none; dense floating maps alike.

    Args:
        parts (tuple): Attention, activation and drop path.
        x (Tensor): State x_t, (N, C, H, W).
        branch (Tensor): Output of the branch's last convolution, likewise.
        norm (nn.Module, optional): The norm behind it.
    """
    gate, relu, _ = parts
    if not (
        all(
            type(part) in kinds and (part is None or is_as_made(part))
            for part, kinds in zip(parts, PARTS)
        )
        and {type(x), type(branch)} <= PLAIN
        and branch.ndim == 4
        and (x.shape, x.dtype, x.device)
        == (branch.shape, branch.dtype, branch.device)
        and branch.numel()
        and (passes := passes_for(branch))
    ):
        return None
    zero, one = aten.constants(x.shape[1], x.dtype, x.device)
    first = second = Norm(False, 0.0, zero, one), one, zero
    if not (norm is None or type(norm) is nn.Identity and is_as_made(norm)):
        first = read_norm(norm, branch)
    weight = getattr(gate, 'ie_weight', one)  # a folded gate has none
    if type(gate) is StepNet:
        second = read_norm(gate.bn, branch, gate)
    if (
        first is None
        or second is None
        or not are_plain((gate.pair_weight, weight, gate.ie_bias))
        or gate.pair_weight.shape != (x.shape[1], 2)
    ):
        return None
    spec = TailSpec(first[0], second[0], gate.scale, type(relu) is nn.ReLU)
    return ByHand(
        passes,
        spec,
        (*first[1:], gate.pair_weight, *second[1:], weight, gate.ie_bias),
    )


def read_norm(
    norm: Any, maps: Tensor, gate: Any = None
) -> tuple[Norm, Tensor, Tensor] | None:
    """What a BN does, its weight and its bias; None where it is not known.

    Nor where the reference path raises an error.

    Args:
        norm (nn.Module): The norm of maps, torchvision's frozen one included,
            or the norm in a gate.
        maps (Tensor): Output of the branch's last convolution, (N, C, H, W).
        gate (nn.Module, optional): The attention that it is in. It is given
            one value of each channel and image, and the attention decides
            whether it takes the batch's statistics.
    """
    frozen = (type(norm).__module__, type(norm).__name__) == FROZEN
    kind, values = (
        (nn.BatchNorm1d, len(maps))
        if gate
        else (nn.BatchNorm2d, maps.numel() // maps.shape[1])
    )
    known = frozen or (
        isinstance(norm, kind) and type(norm).forward is kind.forward
    )
    if not known or not is_as_made(norm):
        return None
    batch = (
        normalises_by_batch(gate, norm)
        if gate
        else not frozen and (norm.training or norm.running_mean is None)
    )
    moved = batch and norm.training and norm.track_running_stats
    kept: Any = (
        [] if batch and not moved else [norm.running_mean, norm.running_var]
    )
    if moved:
        kept += norm.num_batches_tracked, norm.momentum
    how = Norm(batch, norm.eps, *kept)
    if (
        how.momentum is None
        or batch
        and values < 2
        or not are_plain((norm.weight, norm.bias, *kept[:3]))
        or norm.weight.shape[0] != maps.shape[1]
    ):
        return None
    return how, norm.weight, norm.bias


def are_plain(vectors: Iterable[Any]) -> bool:
    """Whether they are dense tensors and nothing else."""
    return all(type(t) in PLAIN and t.is_contiguous() for t in vectors)


def is_as_made(module: nn.Module) -> bool:
    """Whether a module runs its class's ``forward``, and nobody hooks it.

    It is asked at every step, for nobody tells when somebody sets one.
    """
    forward = (
        *module._forward_hooks.values(),
        *(module._forward_pre_hooks.values()),
    )
    return not (
        'forward' in vars(module)
        or module._backward_hooks
        or module._backward_pre_hooks
    ) and all(getattr(hook, 'only_looks', False) for hook in forward)


def passes_for(maps: Tensor) -> ModuleType | None:
    """Module with the passes over such maps; None where none works."""
    if maps.is_cuda and maps.dtype != torch.float64 and not torch.version.hip:
        return _triton(maps.device)
    return aten if maps.is_cpu and maps.numel() >= FEWEST_VALUES else None


@cache
def _triton(device: torch.device) -> ModuleType | None:
    """Triton's passes, where they build, run and are right on a device."""
    try:
        from . import triton as passes

        check(passes, device)
    except Exception as error:  # no Triton 3, driver, compiler or headers
        warnings.warn(
            f'the residual step takes the reference path on {device}, '
            f'because its Triton kernels failed: {error}',
            stacklevel=2,
        )
        return None
    return passes


def check(passes: ModuleType, device: torch.device) -> None:
    """Compare the passes of a device with ATen's, on small maps.

    Raises:
        AssertionError: Results or gradients differ.
    """
    spec = TailSpec(Norm(True, 1e-5), Norm(True, 1e-5), 1.5, True)
    random, results = torch.Generator().manual_seed(0), []
    shapes = *[(2, 5, 3, 3)] * 3, (5,), (5,), (5, 2), *[(5,)] * 4
    tensors = [
        torch.randn(shape, generator=random, device='cpu') for shape in shapes
    ]
    for own, place in ((passes, device), (aten, 'cpu')):
        x, c, grad, *learned = (t.to(place) for t in tensors)
        out, saved = own.forward(spec, x, c, learned)
        *maps, found = own.backward(spec, grad, out, c, learned, saved)
        results.append([t.cpu() for t in (out, *maps, *found)])
    torch.testing.assert_close(*results, rtol=1e-3, atol=1e-3)
