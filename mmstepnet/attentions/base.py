"""The interface of all attentions."""

from collections.abc import Iterable, Mapping
from inspect import signature
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from mmstepnet.checks import check_config, check_positive
from mmstepnet.names import NameTable

from .pooling import STATISTICS
from .record import Recorded

ATTENTIONS = NameTable('attention')
"""Rules that choose the residual step, by name."""


class Attention(Recorded):
    r"""Rule that chooses the step :math:`\Delta t` of a residual block.

    Its two kinds are :class:`ChannelGate` and :class:`MapAttention`. An
    attention with parameters of its own extends ``init_weights()``, which
    brings every parameter to its starting value, whatever the initialisation
    of a backbone did to it. The state dict records type and arguments, see
    :class:`Recorded`.

    Args:
        channels (int): Channels C of x and f.
        init_step (float, optional): Warm start: the step starts at exactly
            this value, so that with 1.0 a pretrained plain network computes
            what it did before. Its gate is scaled, and so is the most that
            it reaches: not 1, but 2 for one sigmoid that starts at 1/2. None
            is the paper's form. Defaults to None.
    """

    first_block = True
    """Whether blocks whose identity is projected carry it by default."""

    needs_map_size = False
    """Whether the constructor takes ``map_size``, the side of the maps."""

    needs_positions = False
    """Whether the place of a value in the map matters to it. Tokens have no
    such place."""

    def __init__(self, channels: int, *, init_step: float | None = None):
        super().__init__()
        check_positive(type(self).__name__, channels=channels)
        self.channels = channels
        self.set_init_step(init_step)

    @property
    def recorded_type(self) -> str:
        """Name of the registered class, of which it may be a subclass."""
        return next(
            (
                cls.__name__
                for cls in type(self).__mro__
                if cls in ATTENTIONS.values()
            ),
            type(self).__name__,
        )

    def init_weights(self) -> None:
        """Bring every parameter to its starting value: here, all layers."""
        for layer in self.children():
            reset: Any = getattr(layer, 'reset_parameters', None)
            if reset is not None:  # nn.Identity has none
                reset()

    def reset_parameters(self) -> None:
        """Bring every parameter and buffer to its start, PyTorch's name.

        Also from memory that holds anything, as after ``to_empty``, and
        before or after the children's own ``reset_parameters``.
        """
        self.init_weights()

    def extra_repr(self) -> str:
        """The arguments that are not the defaults, for ``print(model)``."""
        takes = signature(type(self)).parameters
        shown = []
        for name in ('channels', 'init_step', *self.recorded):
            value = getattr(self, name)
            default = takes[name].default if name in takes else None
            if value != default:
                shown.append(f'{name}={value!r}')
        return ', '.join(shown)


class ChannelGate(Attention):
    """Attention of one number a channel, chosen from pooled statistics.

    Subclasses implement ``forward(*vectors) -> step``: it takes the
    statistics that :attr:`pooled` names, in that order, (N, C) each and in
    float32 or better, and returns the step, (N, C). It sees nothing else, so
    that the fused residual step, which never forms f, calls it as the
    reference path does; once more in the backward pass, so it draws nothing
    at random, and through :func:`torch.func.vjp`.

    Arguments are those of :class:`Attention`.
    """

    pooled: tuple[str, ...] = ()
    """Statistics that ``forward`` takes: ``'x_mean'`` and ``'f_mean'``, see
    :func:`pool`, ``'x_std'`` and ``'f_std'``, see :func:`pool_std`."""


class MapAttention(Attention):
    """Attention that looks at the maps themselves.

    Subclasses implement ``forward(x, f) -> step`` with the state x_t and the
    residual f(x_t), both (N, C, H, W), and a step that broadcasts to f, in
    its dtype. One that may stand over tokens, whose order means nothing,
    sets :attr:`needs_positions` to False.

    Arguments are those of :class:`Attention`.
    """

    needs_positions = True


def is_frozen(attention: nn.Module) -> bool:
    """Whether an attention has parameters and none requires a gradient."""
    wanted = [p.requires_grad for p in attention.parameters()]
    return bool(wanted) and not any(wanted)


VECTOR_NORMS = nn.BatchNorm1d, nn.LayerNorm, nn.Identity
"""Norms that are given vectors as they are. Others may want maps: conversions
and freezes put norms of maps in the place of any."""


def normalises_by_batch(attention: nn.Module, norm: nn.Module) -> bool:
    """Whether a BN in an attention takes the statistics of the batch.

    In training it does, and updates its running ones. A frozen attention does
    not, because it stays the function that it is. Without a momentum the norm
    averages all batches, frozen or not: PyTorch's ``update_bn`` sets it so,
    after a reset of the statistics. A BN that somebody has frozen
    (torchvision, timm) has no momentum at all, and moves nothing.

    Args:
        attention (nn.Module): The attention.
        norm (nn.Module): A norm in it that has running statistics, or could.
    """
    if norm.running_mean is None:
        return True
    return (
        norm.training
        and hasattr(norm, 'momentum')
        and (norm.momentum is None or not is_frozen(attention))
    )


def normalise(attention: nn.Module, norm: Any, pooled: Tensor) -> Tensor:
    """Normalise vectors by a norm; every attention calls its own so.

    A norm that may be one of maps is given maps of one place: conversions to
    SyncBN or to timm's split BN, and freezes, exchange norms of any kind.

    Args:
        attention (nn.Module): The attention.
        norm (nn.Module): A norm in it, also in a wrapper.
        pooled (Tensor): What the norm is given, (N, C).

    Raises:
        ValueError: See :func:`normalise_maps`.
    """
    if any(isinstance(part, VECTOR_NORMS) for part in norm.modules()):
        return normalise_maps(attention, norm, pooled)
    maps = pooled[..., None, None]
    return normalise_maps(attention, norm, maps).flatten(1)


def normalise_maps(attention: nn.Module, norm: Any, pooled: Tensor) -> Tensor:
    """Normalise by a norm that takes what it is given.

    A frozen attention uses the running statistics and leaves them, see
    :func:`normalises_by_batch`. A channel whose batch statistics are not
    finite keeps its running ones, so that a batch which a
    ``torch.amp.GradScaler`` skips leaves no trace.

    Args:
        attention (nn.Module): The attention.
        norm (nn.Module): A norm in it.
        pooled (Tensor): What the norm is given, (N, C) or (N, C, H, W).

    Raises:
        ValueError: An ordinary BN would normalise a single value by its own
            statistics.
    """
    if not isinstance(pooled, Tensor):  # a trace by torch.fx
        return norm(pooled)
    if (
        getattr(norm, 'running_mean', None) is None
        or not norm.training
        or not hasattr(norm, 'momentum')
    ):  # a frozen BN
        return norm(pooled)
    if not normalises_by_batch(attention, norm):
        return F.batch_norm(
            pooled,
            norm.running_mean,
            norm.running_var,
            norm.weight,
            norm.bias,
            eps=norm.eps,
        )
    if (
        isinstance(norm, (nn.BatchNorm1d, nn.BatchNorm2d))
        and pooled.numel() == pooled.shape[1]
    ):
        raise ValueError(
            'the attention normalises pooled features over the batch and '
            'needs at least 2 images a process in training, got 1; use '
            'batch_size >= 2 and drop_last=True (dataloader_drop_last=True '
            "of transformers' Trainer), norm_eval=True with "
            "AttentionBNCalibrationHook, or sync_bn='torch'"
        )
    if (
        type(norm).forward is not _BatchNorm.forward
        or norm.momentum is None
        or 'forward' in vars(norm)
        or norm._forward_hooks
        or norm._forward_pre_hooks
        or norm._backward_hooks
    ):
        # SyncBN, timm's split BN, an average of batches, somebody's hooks
        return norm(pooled)
    count: Any = norm.num_batches_tracked
    count.add_(1)
    kept: Any = norm.running_mean, norm.running_var
    mean, var = torch.stack(kept)
    out = F.batch_norm(
        pooled,
        mean,
        var,
        norm.weight,
        norm.bias,
        True,
        norm.momentum,
        norm.eps,
    )
    finite = var < torch.inf  # then the mean is finite, too
    for running, now in zip(kept, (mean, var)):
        torch.where(finite, now, running, out=running)
    return out


def choose_step(
    attention: nn.Module,
    x: Tensor,
    f: Tensor,
    known: Mapping[str, Tensor] = {},
) -> Tensor:
    """Choose the step by an attention of either kind.

    Args:
        attention (nn.Module): A channel gate, also in a wrapper, which names
            its statistics as ``pooled``; or a map attention, which is called
            as ``attention(x, f)``.
        x (Tensor): State x_t, (N, C, H, W).
        f (Tensor): Residual f(x_t), (N, C, H, W).
        known (Mapping): Statistics that are computed already, by name.

    Returns:
        Tensor: Step, broadcastable to f, in its dtype.
    """
    pooled = getattr(attention, 'pooled', None)
    if pooled is None:  # DDP's and others' name of what is in them
        pooled = getattr(getattr(attention, 'module', None), 'pooled', None)
    if not isinstance(pooled, tuple):
        return attention(x, f)
    vectors = (
        known[name] if name in known else STATISTICS[name](x, f)
        for name in pooled
    )
    return attention(*vectors).to(f.dtype)[..., None, None]


def check_arguments(
    attention: type, arguments: Iterable[str], beside: str = ''
) -> None:
    """Refuse arguments that an attention does not take.

    Args:
        attention (type): Its class.
        arguments (Iterable[str]): Their names.
        beside (str): What the message says behind the names that there are.
            Defaults to nothing.

    Raises:
        TypeError: It does not take one of them.
    """
    takes = signature(attention)
    try:
        takes.bind_partial(0, **dict.fromkeys(arguments))
    except TypeError as error:
        _, *names = takes.parameters
        raise TypeError(
            f'{attention.__name__} {error}; its arguments are '
            f'{", ".join(names)}{beside}'
        ) from error


def build_attention(
    cfg: dict, channels: int, map_size: int | None = None
) -> Attention:
    """Build an attention from its config, whatever the default scope is.

    Args:
        cfg (dict): ``type`` (a name registered in ``ATTENTIONS``, or the
            class) and the arguments beside ``channels``.
        channels (int): Channels of the residual branch's output.
        map_size (int, optional): Side of its map at the backbone's standard
            input, for attentions that need it and whose config does not
            give it. Defaults to None.

    Raises:
        KeyError: The name is not registered; the message lists what is.
        TypeError: ``cfg`` is no such dict, or has an argument that the
            attention does not take.
    """
    check_config('attention', cfg, "dict(type='StepNet')")
    kwargs = dict(cfg)
    attention = ATTENTIONS.find(kwargs.pop('type'))
    if attention.needs_map_size:
        kwargs.setdefault('map_size', map_size)
    check_arguments(attention, kwargs)
    return attention(channels, **kwargs)
