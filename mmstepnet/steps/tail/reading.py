"""What the parts of a step are, as far as the tail knows them."""

from collections.abc import Callable, Iterable
from typing import Any

import torch.nn as nn
from torch import Tensor
from torch.nn.modules import module as every

from mmstepnet.attentions import FoldedStepNet, StepNet

from .formulas import Norm

PLAIN = {Tensor, nn.Parameter}
"""Tensors that are nothing else: no proxies, fakes or wrappers."""

FORWARDS = {kind: kind.forward for kind in (
    StepNet, FoldedStepNet, nn.BatchNorm1d, nn.BatchNorm2d, nn.ReLU,
    nn.Identity)}
"""What these classes came with."""

FROZEN = 'torchvision.ops.misc', 'FrozenBatchNorm2d'
"""Torchvision's BN of buffers, as its detectors use it."""


def read_norm(norm: Any, kind: type, channels: int, values: int,
              batch: bool | None = None,
              ) -> tuple[Norm, Tensor, Tensor] | None:
    """What a BN does, its weight and its bias; None where it is not known.

    Nor where the reference path raises an error.

    Args:
        norm (nn.Module): The norm.
        kind (type): Kind of BN that it has to be, or torchvision's frozen one.
        channels (int): Channels that it is given.
        values (int): Values of each.
        batch (bool, optional): Whether it takes the batch's statistics. None
            asks its mode.
    """
    frozen = (type(norm).__module__, type(norm).__name__) == FROZEN
    if not (frozen or isinstance(norm, kind)) or not is_as_made(norm):
        return None
    own: dict[str, Any] = {
        **norm.__dict__, **norm._buffers, **norm._parameters}
    tensors: Any = map(own.get, (
        'weight', 'bias', 'running_mean', 'running_var',
        'num_batches_tracked'))
    weight, bias, mean, var, count = tensors
    if batch is None:
        batch = not frozen and (norm.training or mean is None)
    moved = batch and norm.training and norm.track_running_stats
    momentum = norm.momentum if moved else 0.
    used = [mean, var, count][:3 if moved else 0 if batch else 2]
    if (momentum is None or batch and values < 2
            or not are_plain((weight, bias, *used))
            or weight.shape[0] != channels):
        return None
    mean, var, count = (*used, None, None, None)[:3]
    how = Norm(bool(batch), norm.eps, mean, var, count, momentum)
    return how, weight, bias


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
