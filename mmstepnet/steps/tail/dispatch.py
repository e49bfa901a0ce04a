"""The door to steps by hand: whether a step may be taken so, and with what.

Who asks gets None where the reference path is right. Each refusal stands in a
line of its own, with its reason.
"""

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from types import ModuleType, NoneType
from typing import Any, NamedTuple

import torch
import torch.nn as nn
from torch import Tensor

from mmstepnet.attentions import FoldedStepNet, StepNet
from mmstepnet.attentions.base import normalises_by_batch
from mmstepnet.messages import warn
from mmstepnet.torch_version import is_compiling, is_exporting, is_transformed

from . import aten, scaled, scaled_aten
from .by_image import scale_by_image
from .function import Tail, evaluate
from .parts import (
    CHANNELS_LAST,
    GateWeights,
    Norm,
    ScaledSpec,
    TailSpec,
    TailWeights,
    find_layout,
)

PLAIN = {Tensor, nn.Parameter}
"""Tensors that are nothing else: no proxies, fakes or wrappers."""

GATES = StepNet, FoldedStepNet
ACTIVATIONS = nn.ReLU, nn.Identity, NoneType
DROP_PATHS = nn.Identity, NoneType
"""Parts that are known. Classes exactly: subclasses compute something else."""

DTYPES = torch.float32, torch.bfloat16, torch.float16
"""Of maps over which sums are formed in float32."""

TRITON = {aten: 'triton', scaled_aten: 'scaled_triton'}
"""Modules of the same passes on CUDA, which need Triton."""

FROZEN = 'torchvision.ops.misc', 'FrozenBatchNorm2d'
"""Torchvision's BN of buffers, as its detectors use it."""

FEWEST_VALUES = 2**16
"""Of a map on a CPU: over smaller ones the reference path is as fast or
faster, for what it takes is the time of its calls."""

FEWEST_OF_AN_IMAGE = 2**13
"""Of one image on a CPU in half precision, where channels come last, as in
tokens: likewise, for ATen's passes go from image to image there."""


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
        ...     steps.fused.mode
        False
    """

    mode: bool = True

    def __init__(self, mode: bool):
        self.before = fused.mode
        fused.mode = bool(mode)

    def __enter__(self) -> 'fused':
        return self

    def __exit__(self, *error) -> None:
        fused.mode = self.before


class ByHand(NamedTuple):
    """What :class:`Tail` or :class:`Scaled` is given beside the maps."""

    passes: ModuleType
    spec: Any
    """A :class:`TailSpec` or :class:`ScaledSpec`."""
    learned: tuple[Tensor, ...]
    """:class:`TailWeights` or :class:`GateWeights`."""


class ReadNorm(NamedTuple):
    """What a BN does, and its weights."""

    how: Norm
    weight: Tensor
    """γ, (C,)."""
    bias: Tensor
    """β, (C,)."""


class ReadGate(NamedTuple):
    """What StepNet's gate does, and its weights."""

    norm: Norm
    weights: GateWeights


class ByImage(NamedTuple):
    """What a compiler needs of a step, see :mod:`.by_image`."""

    norm: ReadNorm


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
    if is_compiling():
        return _read_by_image(step, branch, norm)
    if type(step.attention) not in GATES:
        return None  # another attention, or a wrapper around it
    if not is_known(activation, ACTIVATIONS):
        return None  # it computes something else
    if not is_known(drop_path, DROP_PATHS):
        return None  # it drops
    if not {type(x), type(branch)} <= PLAIN:
        return None  # proxies and subclasses want to see what is called
    if branch.ndim != 4 or not branch.numel():
        return None  # the norm raises an error, or there is nothing to do
    if (x.shape, x.dtype, x.device) != (
        branch.shape,
        branch.dtype,
        branch.device,
    ):
        return None  # the sum broadcasts, or raises an error
    passes = passes_for(branch, aten)
    if passes is None:
        return None
    images, channels = branch.shape[:2]
    gate = read_gate(step.attention, images, channels, branch)
    first = _read_norm_of_tail(norm, branch)
    if gate is None or first is None:
        return None
    spec = TailSpec(
        first.how, gate.norm, step.attention.scale, type(activation) is nn.ReLU
    )
    weights = TailWeights(first.weight, first.bias, *gate.weights)
    return ByHand(passes, spec, weights)


def _read_by_image(
    step: Any, branch: Tensor, norm: nn.Module | None
) -> ByImage | None:
    """How a compiler should read a step."""
    if is_exporting():
        return None  # other programs know BN and pooling by their names
    if step._observers:
        return None  # they are told of f
    if not isinstance(getattr(step.attention, 'pooled', None), tuple):
        return None  # it looks at the maps themselves
    read = read_norm(norm, *_channels_and_values(branch))
    return None if read is None else ByImage(read)


def _read_norm_of_tail(norm: Any, branch: Tensor) -> ReadNorm | None:
    """What a block's last norm does, if there is one."""
    if norm is None or type(norm) is nn.Identity and is_as_made(norm):
        return _no_norm(branch, branch.shape[1])
    return read_norm(norm, *_channels_and_values(branch))


def _channels_and_values(maps: Tensor) -> tuple[int, int]:
    """Channels of maps, and values of a channel."""
    return maps.shape[1], maps.numel() // maps.shape[1]


def _no_norm(maps: Tensor, channels: int) -> ReadNorm:
    """What stands for a norm of such maps that is missing."""
    zero, one = aten.constants(channels, maps.dtype, maps.device)
    return ReadNorm(Norm(False, 0.0, zero, one), one, zero)


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
        residual = scale_by_image(step.attention, x, branch, *tail.norm)
        residual = residual if drop_path is None else drop_path(residual)
        return x + residual if activation is None else activation(x + residual)
    out = Tail.apply(tail.passes, tail.spec, x, branch, *tail.learned)
    if step._observers:
        with torch.no_grad():
            _, (f, dt) = evaluate(tail.spec, x, branch, *tail.learned)
        step.report(x, f, dt, out)
    return out


def read_branch(step: Any, x: Tensor, f: Tensor) -> ByHand | None:
    """How a step at a branch's end can be taken by hand.

    Args:
        step (BranchStep): The module that takes the step.
        x (Tensor): State x_t, with the axes of its place.
        f (Tensor): Branch f(x_t), likewise.

    Returns:
        ByHand: What :func:`take_branch` needs, or None where the reference
        path is right.
    """
    if not fused.mode or is_compiling() or is_transformed():
        return None
    if type(step.attention) not in GATES:
        return None  # another attention, or a wrapper around it
    if not {type(x), type(f)} <= PLAIN:
        return None  # proxies and subclasses want to see what is called
    if x.shape != f.shape or x.device != f.device or not f.numel():
        return None  # the product broadcasts, or raises an error
    if not (x.dtype in DTYPES and f.dtype in DTYPES) and not (
        x.dtype == f.dtype == torch.float64
    ):
        return None  # sums of both would have no dtype in common
    passes = passes_for(f, scaled_aten)
    if passes is None:
        return None
    if passes is scaled_aten and not (
        step.training or torch.is_grad_enabled()
    ):
        return None  # inference: on a CPU only the backward costs less by hand
    place = step.place
    if f.ndim != place.dims:
        return None  # the block goes another way than with its example
    axes = place.batch, place.channels
    layout = find_layout(f.shape, f.stride(), *axes)
    x_layout = find_layout(x.shape, x.stride(), *axes)
    if layout is None or x_layout is None:
        return None  # there are gaps between the values, or another order
    goes_by_image = (
        passes is scaled_aten
        and layout.order == CHANNELS_LAST
        and f.dtype in (torch.bfloat16, torch.float16)
    )
    if goes_by_image and f.numel() < FEWEST_OF_AN_IMAGE * layout.images:
        return None  # the reference path is as fast
    gate = read_gate(step.attention, layout.images, layout.channels, f)
    if gate is None:
        return None
    spec = ScaledSpec(
        gate.norm, step.attention.scale, layout, x_layout, x.dtype
    )
    return ByHand(passes, spec, gate.weights)


def take_branch(how: ByHand, step: Any, x: Tensor, f: Tensor) -> Tensor:
    """Scale a branch by its step, and report it.

    Args:
        how (ByHand): What :func:`read_branch` has found for what follows.
        step (BranchStep): The module that takes the step.
        x (Tensor): State x_t, with the axes of its place.
        f (Tensor): Branch f(x_t), likewise.

    Returns:
        Tensor: f ⊗ Δt.
    """
    out, means = scaled.Scaled.apply(how.passes, how.spec, x, f, *how.learned)
    if step._observers:
        x_mean = means[: how.spec.layout.images]
        with torch.no_grad():
            _, dt = scaled.evaluate(how.spec, x_mean, f, *how.learned)
        step.report(x, f, dt, out)
    return out


def read_gate(
    gate: Any, images: int, channels: int, like: Tensor
) -> ReadGate | None:
    """What StepNet's gate does; None where it is not known.

    Args:
        gate (nn.Module): The attention.
        images (int): N of what it is given.
        channels (int): C of it.
        like (Tensor): On the device of the maps, and of their dtype.
    """
    if not is_known(gate, GATES):
        return None  # another attention, or somebody's hooks see its calls
    if gate.pair_weight.shape != (channels, 2):
        return None  # other inputs, or an error
    if type(gate) is StepNet:
        norm = read_norm(gate.bn, channels, images, gate)
        ie_weight = gate.ie_weight
    else:
        norm = _no_norm(like, channels)
        ie_weight = norm.weight
    if norm is None:
        return None  # IEBN as cited, too: its BN has no weights
    if not are_plain((gate.pair_weight, ie_weight, gate.ie_bias)):
        return None  # subclasses, or strides that the kernels do not know
    return ReadGate(
        norm.how,
        GateWeights(
            gate.pair_weight, norm.weight, norm.bias, ie_weight, gate.ie_bias
        ),
    )


def read_norm(
    norm: Any, channels: int, values: int, gate: Any = None
) -> ReadNorm | None:
    """What a BN does, its weight and its bias; None where it is not known.

    Nor where the reference path raises an error.

    Args:
        norm (nn.Module): The norm of maps, torchvision's frozen one included,
            or the norm in a gate.
        channels (int): C of what it is given.
        values (int): How many it is given of a channel.
        gate (nn.Module, optional): The attention that it is in, which decides
            whether it takes the batch's statistics.
    """
    kind = nn.BatchNorm1d if gate else nn.BatchNorm2d
    frozen = (type(norm).__module__, type(norm).__name__) == FROZEN
    if not frozen and not (
        isinstance(norm, kind) and type(norm).forward is kind.forward
    ):
        return None  # another norm
    if not is_as_made(norm):
        return None  # somebody's hooks see its calls
    if gate:
        batch = normalises_by_batch(gate, norm)
    else:
        batch = not frozen and (norm.training or norm.running_mean is None)
    if batch and values < 2:
        return None  # an error: one value has no variance
    how = Norm(batch, norm.eps)
    vectors = [norm.weight, norm.bias]
    if not batch:
        how = Norm(batch, norm.eps, norm.running_mean, norm.running_var)
        vectors += how.mean, how.var
    elif norm.training and norm.track_running_stats:
        if norm.momentum is None:
            return None  # it averages all batches
        how = Norm(
            batch,
            norm.eps,
            norm.running_mean,
            norm.running_var,
            norm.num_batches_tracked,
            norm.momentum,
        )
        vectors += how.mean, how.var, how.count
    if not are_plain(vectors):
        return None  # one is missing, or is more than a tensor
    if norm.weight.shape[0] != channels:
        return None  # an error
    return ReadNorm(how, norm.weight, norm.bias)


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


def is_known(part: Any, kinds: tuple[type, ...]) -> bool:
    """Whether a part is exactly of one of these classes, and as made."""
    return type(part) in kinds and (part is None or is_as_made(part))


def passes_for(maps: Tensor, oracle: ModuleType) -> ModuleType | None:
    """Module with the passes over such maps; None where none works.

    Args:
        maps (Tensor): The branch.
        oracle (ModuleType): That of ATen's passes.
    """
    if maps.is_cuda and maps.dtype != torch.float64 and not torch.version.hip:
        return _triton(maps.device, oracle)
    return oracle if maps.is_cpu and maps.numel() >= FEWEST_VALUES else None


@cache
def _triton(device: torch.device, oracle: Any) -> ModuleType | None:
    """Triton's passes, where they build, run and are right on a device."""
    try:
        passes = import_module(f'.{TRITON[oracle]}', __package__)
        check(passes, oracle, device)
    except Exception as error:  # no Triton 3, driver, compiler or headers
        warn(
            f'the residual step takes the reference path on {device}, '
            f'because its Triton kernels failed: {error}'
        )
        return None
    return passes


def check(passes: ModuleType, oracle: Any, device: torch.device) -> None:
    """Compare the passes of a device with ATen's, on small maps.

    Raises:
        AssertionError: Results or gradients differ.
    """
    torch.testing.assert_close(
        oracle.try_out(passes, device),
        oracle.try_out(oracle, 'cpu'),
        rtol=1e-3,
        atol=1e-3,
    )
