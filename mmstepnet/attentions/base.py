"""What all attentions share."""

from collections.abc import Callable
from functools import wraps
from numbers import Real

import numpy as np
import torch
import torch.nn as nn
from mmengine.model import BaseModule
from torch import Tensor
from torch.fx import Proxy

from mmstepnet.registry import ATTENTIONS, find_registered
from mmstepnet.steps import PooledMap


class Attention(BaseModule):
    r"""Rule that chooses the step :math:`\Delta t` of a residual block.

    Subclasses implement ``forward(x, f) -> step`` and ``init_weights()``,
    which brings every parameter to its starting value, whatever an
    ``init_cfg`` of the backbone did to it.

    Args:
        channels (int): Channels of x and f.
        init_step (float, optional): Warm start: the step starts at exactly
            this value, so that with 1.0 a pretrained plain network computes
            what it did before. None is the paper's form. Defaults to None.
    """

    first_block = True
    """Whether blocks whose identity is projected carry it by default."""

    needs_map_size = False
    """Whether the constructor takes ``map_size``, the side of the maps."""

    pooled_inputs = None
    """What ``forward`` reads, where that is no more than pooled maps: some of
    ``'x'`` and ``'f'``, :func:`pool` of them, and ``'f_std'``,
    :func:`pool_std` of f. ``forward`` then takes :class:`PooledMap` too, and
    the fused residual step serves it. None: it reads the maps themselves."""

    def __init__(self, channels: int, init_step: float | None = None):
        super().__init__()
        check_positive(type(self).__name__, channels=channels)
        check_init_step(type(self).__name__, init_step)
        self.channels = channels
        self.init_step = init_step

    def forward(self, x: Tensor, f: Tensor) -> Tensor:
        """Choose the step.

        Args:
            x (Tensor): State x_t, (N, C, H, W).
            f (Tensor): Residual f(x_t), (N, C, H, W).

        Returns:
            Tensor: Step, broadcastable to ``f``, in its dtype.
        """
        raise NotImplementedError

    def extra_repr(self) -> str:
        """Channels and warm start, for ``print(model)``."""
        return f'channels={self.channels}, init_step={self.init_step}'


class ChannelGate(Attention):
    r"""Attention of one number a channel, a scaled sigmoid.

    .. math::
        \Delta t = s\, \sigma(\mathrm{logits}(x_t, f(x_t)))

    Subclasses implement ``logits(x, f)``; s is 1 unless ``init_step`` is set.

    Args:
        channels (int): Channels C.
        init_step (float, optional): See :class:`Attention`. Defaults to None.
    """

    initial_logit = 0.0
    """Every logit at the start, where ``init_step`` is set."""

    def __init__(self, channels: int, init_step: float | None = None):
        super().__init__(channels, init_step)
        self.scale = warm_start_scale(init_step, self.initial_logit)

    def logits(self, x: Tensor, f: Tensor) -> Tensor:
        """Compute what the sigmoid sees, (N, C).

        Arguments are those of :meth:`Attention.forward`.
        """
        raise NotImplementedError

    def forward(self, x: Tensor, f: Tensor) -> Tensor:
        """Choose the step, (N, C, 1, 1). See :meth:`Attention.forward`."""
        gate = torch.sigmoid(self.logits(x, f))
        return (gate * self.scale).to(f.dtype)[..., None, None]


def build_attention(cfg: dict,
                    channels: int,
                    map_size: int | None = None) -> Attention:
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
    """
    if not isinstance(cfg, dict) or 'type' not in cfg:
        raise TypeError("attention must be a dict with 'type', such as "
                        f"dict(type='StepNet'), or None; got {cfg!r}")
    kwargs = dict(cfg)
    name = kwargs.pop('type')
    attention = find_registered(ATTENTIONS, name, 'attention')
    if attention.needs_map_size:
        kwargs.setdefault('map_size', map_size)
    return attention(channels, **kwargs)


def leaf(function: Callable) -> Callable:
    """Make a function one node of graphs that torch.fx traces.

    It looks at what a trace does not know.
    """
    @wraps(function)
    def call(*args, **kwargs):
        for arg in args:
            if isinstance(arg, Proxy):
                return arg.tracer.create_proxy('call_function', call, args,
                                               kwargs)
        return function(*args, **kwargs)

    return call


@leaf
def full_precision(x: Tensor) -> Tensor:
    """Bring half precision to float32; leave float32 and float64 alone."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


@leaf
def pool(x: Tensor | PooledMap) -> Tensor:
    """Global average pooling, (N, C, H, W) -> (N, C).

    In float32 or better: half precision cannot hold a large map's sum.
    """
    if isinstance(x, PooledMap):
        return _given(x.mean, 'pool')
    half = x.dtype in (torch.float16, torch.bfloat16)
    return x.mean((2, 3), dtype=torch.float32 if half else None)


@leaf
def pool_std(x: Tensor | PooledMap, eps: float = 1e-5) -> Tensor:
    """Global standard deviation pooling, (N, C, H, W) -> (N, C).

    The deviation of the population, hence defined for a map of one pixel;
    ``eps`` is added to the variance, so that a constant map has a gradient.
    In float32 or better.
    """
    if isinstance(x, PooledMap):
        var = _given(x.var, 'pool_std')
    else:
        var = full_precision(x).var((2, 3), correction=0)
    return (var + eps).sqrt()


def _given(pooled: Tensor | None, function: str) -> Tensor:
    if pooled is None:
        raise RuntimeError(f'the attention calls {function} on a map that its '
                           f'pooled_inputs do not name; add it there')
    return pooled


def check_batch(bn: nn.Module, features: Tensor) -> None:
    """Refuse to normalise a single value by its own statistics.

    Args:
        bn (nn.Module): Norm over the features.
        features (Tensor): Its input, (N, C) or (N, C, H, W).

    Raises:
        ValueError: ``bn`` is an ordinary BN in training mode and a channel
            has one value in the batch.
    """
    # A trace by torch.fx does not know the batch.
    if (isinstance(features, Tensor) and bn.training
            and isinstance(bn, (nn.BatchNorm1d, nn.BatchNorm2d))
            and features.numel() == features.shape[1]):
        raise ValueError(
            'the attention normalises pooled features over the batch and '
            'needs at least 2 images a process in training, got 1; use '
            'batch_size >= 2 (drop_last=True), norm_eval=True with '
            "AttentionBNCalibrationHook, or sync_bn='torch'")


def check_positive(owner: str, **arguments: int) -> None:
    """Refuse what is not a positive integer.

    Args:
        owner (str): Name of the class that takes the arguments.
        **arguments (int): Their values.

    Raises:
        ValueError: One is none.
    """
    for name, value in arguments.items():
        if not isinstance(value, int) or value < 1:
            raise ValueError(f'{owner}: {name} must be a positive integer, '
                             f'got {value!r}')


def check_init_step(owner: str, init_step: float | None) -> None:
    """Refuse an ``init_step`` that no gate can start at.

    Args:
        owner (str): Name of the class that takes the argument.
        init_step (float, optional): Its value.

    Raises:
        ValueError: Neither None nor a positive finite number.
    """
    number = isinstance(init_step, Real) and not isinstance(init_step, bool)
    # Its quotient by a gate of sigmoids must not leave float32.
    if init_step is not None and not (number and 1e-30 < init_step < 1e30):
        raise ValueError(
            f'{owner}: init_step must be a positive number (1.0 keeps a '
            f"pretrained network's output) or None for the paper's form, got "
            f'{init_step!r}')


def warm_start_scale(init_step: float | None, *logits: float) -> float:
    """Factor that brings a gate's starting value to ``init_step``.

    Args:
        init_step (float, optional): Wanted starting value; None gives 1.
        *logits (float): What the gate's sigmoids see at the start; the gate
            is their product.

    Returns:
        float: c with ``prod(sigmoid(logits)) * c == init_step``, exact in
        float32 wherever float32 holds such a c.
    """
    if init_step is None:
        return 1.0
    # Not on the default device, which may be any.
    gate = torch.tensor(logits, dtype=torch.float32, device='cpu')
    gate = gate.sigmoid().prod().numpy()
    scale = np.float32(init_step) / gate
    for candidate in (scale, np.nextafter(scale, np.float32(0)),
                      np.nextafter(scale, np.float32(np.inf))):
        if gate * candidate == np.float32(init_step):
            return float(candidate)
    return float(scale)
