"""Whether a residual step is fused with the norm before it."""

import torch
import torch.nn as nn
from torch import Tensor

from mmstepnet.attentions import ChannelGate
from mmstepnet.torch_version import is_checkpointing, is_transformed

from .compiled import Compiled
from .kernels import backend
from .vectors import parts

SMALLEST = 3 << 19
"""Elements of the smallest maps that are fused on a CPU. To compile for it
takes up to half a minute, which a job on smaller ones would not win back."""

SMALLEST_WARM = 1 << 18
"""As ``SMALLEST`` where the process has compiled for larger ones: these stay
in the cache, and what a step then takes is the number of its operations. Not
under activation checkpointing, nor where PyTorch cannot tell (before 2.8)."""

BATCH_NORMS = nn.BatchNorm1d, nn.BatchNorm2d

SERVED = {'x_mean', 'f_mean', 'f_std'}
"""Statistics that the fused path knows how to pass on."""


class fused:
    """Switch the fused residual step on or off; it is on by default.

    Works like ``torch.set_grad_enabled``: as a call from there on, as a
    context manager inside it.

    Args:
        mode (bool): Whether :class:`ResidualStep` may take the fused path.

    Example:
        >>> from mmstepnet import steps
        >>> with steps.fused(False):
        ...     steps.is_fused()
        False
    """

    enabled = True

    def __init__(self, mode: bool):
        self.previous = fused.enabled
        fused.enabled = bool(mode)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc) -> None:
        fused.enabled = self.previous


def is_fused() -> bool:
    """Whether :class:`ResidualStep` may take the fused path."""
    return fused.enabled


def serves(x: Tensor, branch: Tensor, norm: nn.Module | None,
           step: nn.Module) -> bool:
    """Whether the fused path gives what the reference path would.

    It does not where somebody looks at, transforms or replaces a part of it:
    tracers and exporters, functorch and forward-mode derivatives, module
    hooks, another norm or activation, an active stochastic depth, a map
    attention, a gate whose norm synchronises over ranks. Nor where it would
    be slower.

    Args:
        x (Tensor): State x_t, (N, C, H, W).
        branch (Tensor): Output of the branch's last convolution.
        norm (nn.Module, optional): The norm behind it.
        step (ResidualStep): The module that takes the step.
    """
    gate = step.attention
    if (not fused.enabled or not isinstance(gate, ChannelGate)
            or not gate.pooled or not SERVED.issuperset(gate.pooled)):
        return False
    if is_transformed() or torch.autograd.forward_ad._current_level >= 0:
        return False
    return (_are_plain_maps(x, branch) and _pays(branch)
            and _is_plain_norm(norm, branch)
            and type(step.activation) in (nn.ReLU, nn.Identity)
            and (type(step.drop_path) is nn.Identity
                 or not step.drop_path.training)
            and not _is_hooked(step, norm)
            and all(_is_function(m) for _, m in parts(gate))
            # Somebody who counts or changes operations wants to see them.
            and not torch._C._len_torch_dispatch_stack())


def _is_function(module: nn.Module) -> bool:
    """Whether a part of a gate gives the same if called once more.

    The backward does so. A BN in training does, since it does not read what
    it updates; one that synchronises would do it on some ranks alone. And a
    part whose tensors are attributes, as those of replicas under DataParallel
    and FSDP's views are, would pass them no gradient.
    """
    if 'Sync' in type(module).__name__:  # PyTorch's and MMCV's
        return False
    if any(isinstance(value, Tensor) for value in vars(module).values()):
        return False
    return not module.training or (
        not isinstance(module, nn.modules.dropout._DropoutNd)
        and (not module._buffers or isinstance(module, BATCH_NORMS)))


def _pays(branch: Tensor) -> bool:
    """Whether fewer passes over memory are worth the operations they take."""
    if branch.device.type == 'cpu':
        # Between a checkpoint's two runs others may compile, and both have to
        # choose alike.
        warm = Compiled.warm and not is_checkpointing()
        smallest = min(SMALLEST, SMALLEST_WARM) if warm else SMALLEST
        if branch.numel() < smallest:
            return False
    return backend(branch) is not None


def _are_plain_maps(x: Tensor, branch: Tensor) -> bool:
    plain = (Tensor, nn.Parameter)  # neither proxies nor fake tensors
    return (type(x) in plain and type(branch) in plain
            and branch.is_floating_point() and x.dtype == branch.dtype
            and x.device == branch.device and x.layout == torch.strided
            and branch.layout == torch.strided and x.shape == branch.shape
            and branch.ndim == 4 and branch.numel() > 0)


def _is_plain_norm(norm: nn.Module | None, branch: Tensor) -> bool:
    if _is_identity(norm):
        return True
    # The type exactly: IEBN is a BatchNorm2d too.
    if _is_frozen(norm):
        return len(norm.weight) == branch.shape[1]
    return (type(norm) is nn.BatchNorm2d and norm.affine
            and norm.num_features == branch.shape[1]
            and (norm.running_mean is not None
                 or not norm.track_running_stats)
            # One value a channel: the reference path raises the error.
            and branch.numel() > branch.shape[1])


def _is_frozen(norm: nn.Module) -> bool:
    """Whether it is torchvision's BN of buffers, as detectors use it."""
    kind = type(norm)
    return (kind.__module__, kind.__name__) == (
        'torchvision.ops.misc', 'FrozenBatchNorm2d')


def _is_identity(norm: nn.Module | None) -> bool:
    return norm is None or type(norm) is nn.Identity


def _is_hooked(step: nn.Module, norm: nn.Module | None) -> bool:
    everywhere = nn.modules.module
    if (everywhere._global_forward_hooks
            or everywhere._global_forward_pre_hooks
            or everywhere._global_backward_hooks
            or everywhere._global_backward_pre_hooks):
        return True
    return any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks
               or m._backward_pre_hooks
               for module in (*step._modules.values(), norm)
               if module is not None for _, m in parts(module))
