"""Attention modules that differ in their similarity alone.

Towards understanding how attention mechanism works in deep learning, Section
4.1 and Algorithm 1.
"""

import math
from typing import NamedTuple

import torch
import torch.nn as nn
from mmengine.model import BaseModule
from torch import Tensor

from mmstepnet.registry import PROPAGATIONS

from .functional import (
    check_eps,
    dot_product_propagation,
    metric_propagation,
)


class ProjectedSources(NamedTuple):
    """Points that inform others, as attention needs them.

    What :meth:`PropagationAttention.project` makes, so that sources that
    inform again and again are mapped once, as when a translation is decoded
    token by token.

    Attributes:
        keys (Tensor): What the similarity compares, (..., H, M, C/H).
        values (Tensor): What they send, (..., H, M, C/H).
    """

    keys: Tensor
    values: Tensor


class PropagationAttention(BaseModule):
    """Attention ``X' = S X W``, its similarity S left to subclasses.

    With several heads each has its own similarity, and its own slice of the
    values; a linear layer merges them (Section 3.3). With one head there is
    the single matrix W of the paper.

    Args:
        embed_dims (int): Width C of the tokens, points or nodes.
        num_heads (int): Heads H; divides ``embed_dims``. Defaults to 1.
        bias (bool): Whether the linear layers of values and output have
            biases. Defaults to True.

    Raises:
        ValueError: A width is not a positive integer, or the heads do not
            divide it.
    """

    tied = False
    """Whether receivers and sources are mapped alike."""

    def __init__(self, embed_dims: int, num_heads: int = 1, bias: bool = True):
        super().__init__()
        for name, value in (('embed_dims', embed_dims),
                            ('num_heads', num_heads)):
            if not isinstance(value, int) or value < 1:
                raise ValueError(f'{type(self).__name__}: {name} must be a '
                                 f'positive integer, got {value!r}')
        if embed_dims % num_heads:
            raise ValueError(
                f'{type(self).__name__}: num_heads must divide embed_dims, '
                f'got {num_heads} heads for {embed_dims}')
        self.embed_dims = embed_dims
        self.num_heads = num_heads
        self.head_dims = embed_dims // num_heads
        self.value = nn.Linear(embed_dims, embed_dims, bias=bias)
        self.proj = nn.Linear(
            embed_dims, embed_dims,
            bias=bias) if num_heads > 1 else nn.Identity()

    def map_receivers(self, x: Tensor) -> Tensor:
        """Map points to where they are compared, (..., N, C) both."""
        raise NotImplementedError

    def map_sources(self, x: Tensor) -> Tensor:
        """Map points to where others are compared with them, as above."""
        raise NotImplementedError

    def propagate(self, q: Tensor, k: Tensor, v: Tensor, **kwargs) -> Tensor:
        """Weigh v by the similarity of q and k.

        Args:
            q (Tensor): Mapped receivers, (..., H, N, C/H).
            k (Tensor): Mapped sources, (..., H, M, C/H).
            v (Tensor): Values, (..., H, M, C/H).
            **kwargs: ``mask``, ``is_causal`` and ``dense``.

        Returns:
            Tensor: (..., H, N, C/H).
        """
        raise NotImplementedError

    def split_heads(self, x: Tensor) -> Tensor:
        """Take apart (..., N, C) into (..., H, N, C/H)."""
        return x.unflatten(-1, (self.num_heads, -1)).transpose(-2, -3)

    def project(self, sources: Tensor) -> ProjectedSources:
        """Map points that inform, once for all that they will inform.

        Args:
            sources (Tensor): (..., M, C).

        Raises:
            ValueError: They are of another width.
        """
        self._check_points('sources', sources)
        return ProjectedSources(
            self.split_heads(self.map_sources(sources)),
            self.split_heads(self.value(sources)))

    def forward(self,
                x: Tensor,
                sources: Tensor | ProjectedSources | None = None,
                *,
                mask: Tensor | None = None,
                is_causal: bool = False,
                dense: bool = False) -> Tensor:
        """Inform x by the sources.

        Args:
            x (Tensor): Points that are informed, (..., N, C).
            sources (Tensor | ProjectedSources, optional): Points that inform,
                (..., M, C), or what :meth:`project` made of them. Defaults
                to None: x itself.
            mask (Tensor, optional): Bool, True where j may inform i,
                broadcastable to (..., N, M), the same for all heads; or
                sparse COO (N, M). See :func:`metric_propagation`.
            is_causal (bool): Defaults to False.
            dense (bool): Take the N x M form. Defaults to False.

        Returns:
            Tensor: (..., N, C).

        Raises:
            ValueError: See :func:`metric_propagation`.
        """
        self._check_points('x', x)
        sources = x if sources is None else sources
        mapped = self.tied and sources is x
        if not isinstance(sources, ProjectedSources):
            sources = self.project(sources)
        if isinstance(mask, Tensor) and not mask.is_sparse and mask.ndim > 2:
            mask = mask.unsqueeze(-3)
        out = self.propagate(
            sources.keys if mapped else self.split_heads(
                self.map_receivers(x)),
            *sources,
            mask=mask,
            is_causal=is_causal,
            dense=dense)
        return self.proj(out.transpose(-2, -3).flatten(-2))

    def _check_points(self, name: str, points: Tensor) -> None:
        if points.ndim < 2 or points.shape[-1] != self.embed_dims:
            raise ValueError(
                f'{type(self).__name__}: {name} must be (..., points, '
                f'{self.embed_dims}), got {tuple(points.shape)}')


@PROPAGATIONS.register_module()
class DotProductAttention(PropagationAttention):
    r"""The usual self-attention, the baseline.

    .. math::
        S_{ij} = \mathrm{softmax}_j((W_q x_i) \cdot (W_k x_j) / \sqrt{C/H})

    Args:
        embed_dims (int): Width C.
        num_heads (int): Heads H. Defaults to 1.
        bias (bool): Whether linear layers have biases. Defaults to True.

    Raises:
        ValueError: See :class:`PropagationAttention`.
    """

    def __init__(self, embed_dims: int, num_heads: int = 1, bias: bool = True):
        super().__init__(embed_dims, num_heads, bias)
        self.query = nn.Linear(embed_dims, embed_dims, bias=bias)
        self.key = nn.Linear(embed_dims, embed_dims, bias=bias)

    def map_receivers(self, x: Tensor) -> Tensor:
        """Map points to queries, (..., N, C) -> (..., N, C)."""
        return self.query(x)

    def map_sources(self, x: Tensor) -> Tensor:
        """Map points to keys, (..., M, C) -> (..., M, C)."""
        return self.key(x)

    def propagate(self, q: Tensor, k: Tensor, v: Tensor, **kwargs) -> Tensor:
        """Propagate by :func:`dot_product_propagation`."""
        return dot_product_propagation(q, k, v, **kwargs)


class PseudoMetricAttention(PropagationAttention):
    r"""Attention by the distances of points that :math:`\varphi` maps.

    .. math::
        S_{ij} = \mathrm{softmax}_j(
        -\|\varphi(x_i) - \varphi(x_j)\|^2 / \varepsilon)

    :math:`\varphi` is shared by both sides. With several heads its output is
    split among them, so that each has a metric of its own on the whole point
    (a reading: the paper defines metric-attention for one head).

    Args:
        embed_dims (int): Width C.
        num_heads (int): Heads H. Defaults to 1.
        eps (float, optional): Time scale :math:`\varepsilon`. Defaults to
            None: :math:`\sqrt{C/H}`, the scale of L2 self-attention (Kim et
            al., 2021) and a reading: the paper's text gives no value.
        bias (bool): Whether linear layers have biases. Defaults to True.

    Raises:
        ValueError: See :class:`PropagationAttention`, or ``eps`` is not
            positive.
    """

    tied = True

    def __init__(self,
                 embed_dims: int,
                 num_heads: int = 1,
                 eps: float | None = None,
                 bias: bool = True):
        super().__init__(embed_dims, num_heads, bias)
        if eps is None:
            eps = math.sqrt(self.head_dims)
        check_eps(eps)
        self.eps = eps

    def phi(self, x: Tensor) -> Tensor:
        """Map points (..., N, C) to where distances are taken, (..., N, C)."""
        raise NotImplementedError

    def map_receivers(self, x: Tensor) -> Tensor:
        r"""Map points by :math:`\varphi`, (..., N, C) -> (..., N, C)."""
        return self.phi(x)

    def map_sources(self, x: Tensor) -> Tensor:
        r"""Map points by :math:`\varphi`, (..., M, C) -> (..., M, C)."""
        return self.phi(x)

    def propagate(self, q: Tensor, k: Tensor, v: Tensor, **kwargs) -> Tensor:
        """Propagate by :func:`metric_propagation`."""
        return metric_propagation(q, k, v, self.eps, **kwargs)

    def extra_repr(self) -> str:
        """The time scale, for ``print(model)``."""
        return f'eps={self.eps:g}'


@PROPAGATIONS.register_module()
class L2Attention(PseudoMetricAttention):
    r"""L2 self-attention: :math:`\varphi` is linear.

    The Lipschitz Constant of Self-Attention, ICML 2021,
    https://arxiv.org/abs/2006.04710, with query and key tied.

    Args:
        embed_dims (int): Width C.
        num_heads (int): Heads H. Defaults to 1.
        eps (float, optional): Time scale, see
            :class:`PseudoMetricAttention`. Defaults to None.
        bias (bool): Whether the linear layers of values and output have
            biases. Defaults to True.

    Raises:
        ValueError: See :class:`PseudoMetricAttention`.
    """

    def __init__(self,
                 embed_dims: int,
                 num_heads: int = 1,
                 eps: float | None = None,
                 bias: bool = True):
        super().__init__(embed_dims, num_heads, eps, bias)
        # A bias would cancel in every distance.
        self.metric = nn.Linear(embed_dims, embed_dims, bias=False)

    def phi(self, x: Tensor) -> Tensor:
        """Map points linearly, (..., N, C) -> (..., N, C)."""
        return self.metric(x)


@PROPAGATIONS.register_module()
class MetricAttention(PseudoMetricAttention):
    r"""Metric-attention: :math:`\varphi(x) = x + W_2 \tanh(W_1 x + b_1)`.

    A multilayer perceptron with one hidden layer and a residual connection
    learns the metric (Section 4.1). The hidden layer is as wide as the points
    unless ``hidden_dims`` says otherwise.

    Args:
        embed_dims (int): Width C.
        num_heads (int): Heads H. Defaults to 1.
        eps (float, optional): Time scale, see
            :class:`PseudoMetricAttention`. Defaults to None.
        bias (bool): Whether the linear layers of values and output have
            biases. Defaults to True.
        hidden_dims (int, optional): Width of the hidden layer. Defaults to
            None: ``embed_dims``, a reading of the paper's Table 2.

    Raises:
        ValueError: See :class:`PseudoMetricAttention`.
    """

    def __init__(self,
                 embed_dims: int,
                 num_heads: int = 1,
                 eps: float | None = None,
                 bias: bool = True,
                 hidden_dims: int | None = None):
        super().__init__(embed_dims, num_heads, eps, bias)
        hidden_dims = embed_dims if hidden_dims is None else hidden_dims
        if not isinstance(hidden_dims, int) or hidden_dims < 1:
            raise ValueError('MetricAttention: hidden_dims must be a '
                             f'positive integer, got {hidden_dims!r}')
        self.hidden = nn.Linear(embed_dims, hidden_dims)
        # A bias would cancel in every distance.
        self.metric = nn.Linear(hidden_dims, embed_dims, bias=False)

    def phi(self, x: Tensor) -> Tensor:
        """Map points, (..., N, C) -> (..., N, C)."""
        return x + self.metric(torch.tanh(self.hidden(x)))
