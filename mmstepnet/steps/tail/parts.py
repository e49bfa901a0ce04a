r"""What a step by hand is made of, by name, and its equation over vectors.

With X and F the means of the state x and of the branch f over the places of
an image, (N, C) each, StepNet's gate is

.. math::
    z = w_0 X + w_1 (X + F), \qquad
    y = \hat z\, \gamma' + \beta', \qquad
    \Delta t = k\, \sigma(W_{IE}\, y + b_{IE})

with :math:`\hat z` the normalised z. :func:`choose_by_formula` is this
equation, and what the passes over the maps are compared with.

StepNet: ICCV 2023, §2.5 and Appendix F.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Norm(NamedTuple):
    """How a BN normalises.

    One that is missing is one that changes nothing: of running statistics 0
    and 1 and ε = 0.
    """

    batch: bool
    """By the statistics of the batch; else by its running ones."""
    eps: float
    mean: Any = None
    """Running mean, a tensor (C,); None where it is not taken or updated."""
    var: Any = None
    count: Tensor | None = None
    """Of batches seen; None where no running statistics are updated."""
    momentum: float = 0.0

    @property
    def used(self) -> tuple[Tensor | None, Tensor | None]:
        """Mean and variance that are given; None for those of the batch."""
        return (None, None) if self.batch else (self.mean, self.var)

    def update(self, mean: Tensor, var: Tensor, count: int) -> None:
        """Move the running statistics towards those of so many values."""
        if self.count is not None:
            kind = self.mean.dtype
            part = self.momentum / (count - 1)
            self.mean.lerp_(mean.to(kind), self.momentum)
            self.var.lerp_(var.to(kind), self.momentum).add_(var, alpha=part)
            self.count.add_(1)

    def normalise(
        self, values: Tensor, weight: Tensor, bias: Tensor
    ) -> Tensor:
        """Normalise, by an operation whose gradients have gradients."""
        mean, var = (t if t is None else t.to(values.dtype) for t in self.used)
        return F.batch_norm(
            values, mean, var, weight, bias, self.batch, 0.0, self.eps
        )


class GateWeights(NamedTuple):
    """What StepNet's gate has learned; a folded one has γ' 1 and β' 0."""

    pair: Tensor
    """w, the weights of X and of X + F, (C, 2)."""
    weight: Tensor
    """γ' of its BN, (C,)."""
    bias: Tensor
    """β' of its BN, (C,)."""
    ie_weight: Tensor
    """W_IE, (C,); 1 where the gate is folded."""
    ie_bias: Tensor
    """b_IE, (C,)."""


class TailWeights(NamedTuple):
    """What a tail has learned: its norm's weights, then its gate's."""

    norm_weight: Tensor
    """γ, (C,)."""
    norm_bias: Tensor
    """β, (C,)."""
    pair: Tensor
    weight: Tensor
    bias: Tensor
    ie_weight: Tensor
    ie_bias: Tensor

    @property
    def gate(self) -> GateWeights:
        """Those of the gate alone."""
        return GateWeights(*self[2:])


class TailSpec(NamedTuple):
    """What a tail does, beside the tensors that may have gradients."""

    norm: Norm
    """Of the block."""
    gate: Norm
    """Of the gate."""
    k: float
    """What the gate's sigmoid is multiplied by."""
    relu: bool
    """Whether the sum is rectified."""


PLACES_LAST, CHANNELS_LAST, IMAGES_INSIDE = range(3)
"""Orders in memory: (N, C, S), as maps by default; (N, S, C), as tokens and
maps in channels_last; (S, N, C), as ``nn.MultiheadAttention`` returns tokens,
whatever order of axes it is asked for."""


class Layout(NamedTuple):
    """How a state of any number of axes lies in memory, without a gap."""

    images: int
    """N."""
    channels: int
    """C."""
    places: int
    """S: pixels, tokens, voxels; 1 where there is no other axis."""
    order: int
    """One of the three above."""
    batch: int
    """The axis of the images."""
    channel: int
    """The axis of the channels, which is behind it."""
    spread: tuple[int, ...]
    """The shape in which a vector, (N, C), broadcasts to the state."""

    def maps(self, state: Tensor) -> Tensor:
        """View it as maps, (N, C, S, 1)."""
        n, c, s = self.sizes
        strides = {
            PLACES_LAST: (c * s, s, 1, 1),
            CHANNELS_LAST: (s * c, 1, c, c),
            IMAGES_INSIDE: (c, 1, n * c, n * c),
        }
        return state.as_strided((n, c, s, 1), strides[self.order])

    @property
    def sizes(self) -> tuple[int, int, int]:
        """N, C and S."""
        return self.images, self.channels, self.places

    def mean(self, state: Tensor) -> Tensor:
        """Mean over the places, (N, C), of a state of this shape."""
        state = state.movedim((self.batch, self.channel), (0, 1))
        return state.reshape(self.images, self.channels, -1).mean(2)


@lru_cache(1024)
def find_layout(
    shape: Sequence[int], strides: Sequence[int], batch: int, channel: int
) -> Layout | None:
    """How a state lies in memory; None where it does in another way.

    Args:
        shape (torch.Size): Of the state.
        strides (tuple[int]): Of the state, in values.
        batch (int): Its axis of images.
        channel (int): Its axis of channels.
    """
    places = [i for i in range(len(shape)) if i not in (batch, channel)]
    if batch > channel:
        return None
    for order, axes in (
        (PLACES_LAST, (batch, channel, *places)),
        (CHANNELS_LAST, (batch, *places, channel)),
        (IMAGES_INSIDE, (*places, batch, channel)),
    ):
        if _is_dense([(shape[i], strides[i]) for i in axes]):
            spread = [1] * len(shape)
            spread[batch] = shape[batch]
            spread[channel] = shape[channel]
            return Layout(
                shape[batch],
                shape[channel],
                torch.Size(shape[i] for i in places).numel(),
                order,
                batch,
                channel,
                tuple(spread),
            )
    return None


def _is_dense(axes: list[tuple[int, int]]) -> bool:
    """Whether sizes and strides, from outside, leave no gap in memory."""
    expected = 1
    for size, stride in reversed(axes):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


class ScaledSpec(NamedTuple):
    """What a step at a branch's end does, beside tensors with gradients."""

    gate: Norm
    """Of the gate."""
    k: float
    """What the gate's sigmoid is multiplied by."""
    layout: Layout
    """Of the branch and of the result."""
    x_layout: Layout
    """Of the state, which may lie in another order."""
    x_dtype: torch.dtype
    """Of the state; under autocast it is another one than the branch's."""


def choose_by_formula(
    gate: Norm, k: float, weights: GateWeights, x_mean: Tensor, f_mean: Tensor
) -> Tensor:
    """Δt, by operations whose gradients have gradients.

    Args:
        gate (Norm): That of the gate. No running statistics are updated.
        k (float): What the sigmoid is multiplied by.
        weights (GateWeights): What is learned, in float32 or better.
        x_mean (Tensor): X, (N, C), likewise.
        f_mean (Tensor): F, (N, C), likewise.

    Returns:
        Tensor: Δt, (N, C).
    """
    states = torch.stack((x_mean, x_mean + f_mean), 2)
    y = gate.normalise(
        (states * weights.pair).sum(2), weights.weight, weights.bias
    )
    return k * torch.sigmoid(y * weights.ie_weight + weights.ie_bias)
