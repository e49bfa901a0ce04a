"""What all attentions share."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from numbers import Real

import numpy as np
import torch
import torch.nn as nn
from torch import Tensor

from mmstepnet.checks import check_config, check_positive
from mmstepnet.names import NameTable
from mmstepnet.torch_version import is_compiling

from .pooling import STATISTICS
from .record import Recorded

ATTENTIONS = NameTable('attention')
"""Rules that choose the residual step, by name."""


class Attention(Recorded):
    r"""Rule that chooses the step :math:`\Delta t` of a residual block.

    Its two kinds are :class:`ChannelGate` and :class:`MapAttention`. Each
    attention implements ``init_weights()``, which brings every parameter to
    its starting value, whatever the initialisation of a backbone did to it.
    The state dict records type and arguments, see :class:`Recorded`.

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
    """Whether it looks at where a value stands in the map, which a set of
    tokens does not have."""

    initial_logits = (0.0, )
    """What the sigmoids whose product the gate is see at the start, where
    ``init_step`` is set."""

    def __init__(self, channels: int, *, init_step: float | None = None):
        super().__init__()
        check_positive(type(self).__name__, channels=channels)
        self.channels = channels
        self.set_init_step(init_step)

    @property
    def recorded_type(self) -> str:
        """Name of the registered class, of which it may be a subclass."""
        return next((cls.__name__ for cls in type(self).__mro__
                     if cls in ATTENTIONS.values()), type(self).__name__)

    def set_init_step(self, init_step: float | None) -> None:
        """Let the step start elsewhere; parameters stay what they are.

        Args:
            init_step (float, optional): See :class:`Attention`.

        Raises:
            ValueError: No gate can start there.
        """
        check_init_step(type(self).__name__, init_step)
        self.init_step = init_step
        self.scale = warm_start_scale(init_step, *self.initial_logits)

    def init_weights(self) -> None:
        """Bring every parameter to its starting value."""

    def reset_parameters(self) -> None:
        """Bring every parameter and buffer to its start, PyTorch's name.

        Also from memory that holds anything, as after ``to_empty``, and
        before or after the children's own ``reset_parameters``.
        """
        self.init_weights()

    def extra_repr(self) -> str:
        """Channels and warm start, for ``print(model)``."""
        return f'channels={self.channels}, init_step={self.init_step}'


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
    """Whether an attention has parameters and none requires a gradient.

    FSDP gives modules views of its own parameters in place of theirs; of
    other tensors nobody knows.
    """
    if is_compiling():  # which knows parameters, and no views of others
        wanted = [p.requires_grad for p in attention.parameters()]
        return bool(wanted) and not any(wanted)
    frozen = False
    for tensor in own_tensors(attention):
        owner = tensor if isinstance(tensor, nn.Parameter) else tensor._base
        if owner is None or owner.requires_grad:
            return False
        frozen = True
    return frozen


def own_tensors(module: nn.Module) -> Iterator[Tensor]:
    """Parameters, and what stands in their place: other attributes."""
    for tensor in module._parameters.values():
        if tensor is not None:
            yield tensor
    for value in vars(module).values():
        if isinstance(value, Tensor):
            yield value
    for child in module._modules.values():
        if child is not None:
            yield from own_tensors(child)


def normalises_by_batch(attention: nn.Module, norm: nn.Module) -> bool:
    """Whether a BN in an attention takes the statistics of the batch.

    In training it does, and updates its running ones, unless the attention is
    frozen: who freezes an attention wants it to stay the function that it is.
    Without a momentum the norm averages all batches, as in PyTorch's
    ``update_bn``, which has forgotten the statistics before.

    Args:
        attention (nn.Module): The attention.
        norm (nn.Module): A norm in it that has running statistics, or could.
    """
    if norm.running_mean is None:
        return True
    return norm.training and (
        norm.momentum is None or not is_frozen(attention))


@contextmanager
def evaluating(norms: list[nn.Module]) -> Iterator[None]:
    """Let norms take their running statistics, and leave them, inside."""
    for norm in norms:
        norm.training = False
    try:
        yield
    finally:
        for norm in norms:
            norm.training = True


def choose_step(attention: nn.Module, x: Tensor, f: Tensor,
                known: Mapping[str, Tensor] = {}) -> Tensor:
    """Choose the step by an attention of either kind.

    A frozen one normalises by its running statistics and leaves them, see
    :func:`normalises_by_batch`.

    Args:
        attention (nn.Module): A channel gate, which says what it needs as
            ``pooled``, in a wrapper, too; or what is called as
            ``attention(x, f)``.
        x (Tensor): State x_t, (N, C, H, W).
        f (Tensor): Residual f(x_t), (N, C, H, W).
        known (Mapping): Statistics that need not be computed of x and f.

    Returns:
        Tensor: Step, broadcastable to f, in its dtype.
    """
    held = [m for m in attention.modules()
            if m.training and getattr(m, 'running_mean', None) is not None
            and not normalises_by_batch(attention, m)]
    if held:
        with evaluating(held):
            return choose_step(attention, x, f, known)
    pooled = getattr(attention, 'pooled', None)
    if pooled is None:  # DDP's and others' name of what is in them
        pooled = getattr(getattr(attention, 'module', None), 'pooled', None)
    if not isinstance(pooled, tuple):
        return attention(x, f)
    vectors = (known[name] if name in known else STATISTICS[name](x, f)
               for name in pooled)
    return attention(*vectors).to(f.dtype)[..., None, None]


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
        TypeError: ``cfg`` is no such dict.
    """
    check_config('attention', cfg, "dict(type='StepNet')")
    kwargs = dict(cfg)
    attention = ATTENTIONS.find(kwargs.pop('type'))
    if attention.needs_map_size:
        kwargs.setdefault('map_size', map_size)
    return attention(channels, **kwargs)


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


def normalise(bn: nn.Module, vectors: Tensor) -> Tensor:
    """Call a gate's BN on (N, C), or on maps of one place where it takes such.

    As timm's ``convert_splitbn_model`` puts one for maps in the place of any.
    """
    if isinstance(bn, nn.BatchNorm2d):
        return bn(vectors[..., None, None]).flatten(1)
    return bn(vectors)


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
