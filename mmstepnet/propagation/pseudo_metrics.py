r"""Pseudo-metrics: what attention compares points by.

Towards understanding how attention mechanism works in deep learning,
https://arxiv.org/abs/2412.18288, Sections 3.1 and 4.1. One class serves the
propagation alone and the attention block, on all pairs and on edges.
"""

from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from mmstepnet.checks import check_choice, check_positive

from .functional import (
    dot_product_propagation,
    metric_propagation,
    minus_dot_product,
    squared_distance,
)
from .pseudo_metric import PseudoMetric

ACTIVATIONS = dict(leaky_relu=lambda x: F.leaky_relu(x, 0.2), tanh=torch.tanh)
"""Of :class:`GraphAttention`, by name."""


class DotProduct(PseudoMetric):
    r"""The Transformer's: :math:`f_\theta(x, y) = -x^T Q^T K y`.

    Attention Is All You Need, https://arxiv.org/abs/1706.03762, as the paper
    writes it: without :math:`1/\sqrt{C/H}`, which is a time scale of the
    propagation, see there.

    Args:
        embed_dims (int): Width C.
        num_heads (int): Heads H. Defaults to 1.
        bias (bool): Whether Q and K have biases, which the paper's do not.
            Defaults to False.

    Raises:
        ValueError: See :class:`PseudoMetric`.
    """

    def __init__(
        self, embed_dims: int, num_heads: int = 1, bias: bool = False
    ):
        super().__init__(embed_dims, num_heads)
        self.query = nn.Linear(embed_dims, embed_dims, bias=bias)
        self.key = nn.Linear(embed_dims, embed_dims, bias=bias)

    def map_receivers(self, x: Tensor) -> Tensor:
        """Map points to queries, (..., N, C) -> (..., H, N, C/H)."""
        return self.split_heads(self.query(x))

    def map_sources(self, y: Tensor) -> Tensor:
        """Map points to keys, (..., M, C) -> (..., H, M, C/H)."""
        return self.split_heads(self.key(y))

    def compare(self, a: Tensor, b: Tensor) -> Tensor:
        """Evaluate minus the dot product, (..., D) -> (...)."""
        return minus_dot_product(a, b)

    def propagate(
        self,
        a: Tensor,
        b: Tensor,
        v: Tensor,
        eps: float = 1.0,
        mask: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Propagate by :func:`dot_product_propagation`."""
        return dot_product_propagation(a, b, v, eps, mask, **kwargs)


class SquaredDistance(PseudoMetric):
    r"""Squares of metrics.

    .. math::
        f_\theta(x, y) = \|\tilde f_\theta(x) - \tilde f_\theta(y)\|^2

    With several heads :math:`\tilde f` is split among them, so that each has
    a metric of its own on the whole point (a reading: the paper defines
    metric-attention for one head). Subclasses implement ``embed``.
    """

    tied = True

    def embed(self, x: Tensor) -> Tensor:
        r"""Map points by :math:`\tilde f`, (..., N, C) -> (..., N, C)."""
        raise NotImplementedError

    def map_receivers(self, x: Tensor) -> Tensor:
        r"""Map points by :math:`\tilde f`, (..., N, C) -> (..., H, N, C/H)."""
        return self.split_heads(self.embed(x))

    def map_sources(self, y: Tensor) -> Tensor:
        r"""Map points by :math:`\tilde f`, (..., M, C) -> (..., H, M, C/H)."""
        return self.split_heads(self.embed(y))

    def compare(self, a: Tensor, b: Tensor) -> Tensor:
        """Evaluate the squared distance, (..., D) -> (...)."""
        return squared_distance(a, b)

    def propagate(
        self,
        a: Tensor,
        b: Tensor,
        v: Tensor,
        eps: float = 1.0,
        mask: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Propagate by :func:`metric_propagation`."""
        return metric_propagation(a, b, v, eps, mask, **kwargs)


class L2(SquaredDistance):
    r"""L2 self-attention's: :math:`\tilde f_\theta` is linear.

    The Lipschitz Constant of Self-Attention, ICML 2021,
    https://arxiv.org/abs/2006.04710, with query and key tied.

    Args:
        embed_dims (int): Width C.
        num_heads (int): Heads H. Defaults to 1.

    Raises:
        ValueError: See :class:`PseudoMetric`.
    """

    def __init__(self, embed_dims: int, num_heads: int = 1):
        super().__init__(embed_dims, num_heads)
        # A bias would cancel in every distance.
        self.metric = nn.Linear(embed_dims, embed_dims, bias=False)

    def embed(self, x: Tensor) -> Tensor:
        """Map points linearly, (..., N, C) -> (..., N, C)."""
        return self.metric(x)


class Metric(SquaredDistance):
    r"""Metric-attention's (Section 4.1, Algorithm 1), a learned metric.

    .. math::
        \tilde f_\theta(x) = x + W_2 \tanh(W_1 x + b_1)

    A multilayer perceptron with one hidden layer and a residual connection;
    Tanh is that of the experiments.

    Args:
        embed_dims (int): Width C.
        num_heads (int): Heads H. Defaults to 1.
        hidden_dims (int, optional): Width of the hidden layer, d_mlp of Table
            2. Defaults to None: ``embed_dims``, as in all of Table 2.

    Raises:
        ValueError: See :class:`PseudoMetric`.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int = 1,
        hidden_dims: int | None = None,
    ):
        super().__init__(embed_dims, num_heads)
        hidden_dims = embed_dims if hidden_dims is None else hidden_dims
        check_positive('Metric', hidden_dims=hidden_dims)
        self.hidden = nn.Linear(embed_dims, hidden_dims)
        # A bias would cancel in every distance.
        self.metric = nn.Linear(hidden_dims, embed_dims, bias=False)

    def embed(self, x: Tensor) -> Tensor:
        """Map points, (..., N, C) -> (..., N, C)."""
        return x + self.metric(torch.tanh(self.hidden(x)))


class GraphAttention(PseudoMetric):
    r"""That of graph attention networks (Section 3.1).

    .. math::
        f_\theta(x, y) = -\sigma(\alpha_1^T P x - \alpha_2^T P y)

    Graph Attention Networks, ICLR 2018, https://arxiv.org/abs/1710.10903,
    where :math:`-\alpha_2` is one half of the attention vector. Symmetric
    where :math:`\alpha_1 = -\alpha_2` (Example 2). Meant for the edges of a
    sparse mask; without one it has the N x M matrix, for a nonlinear
    :math:`\sigma` is no dot product.

    Args:
        embed_dims (int): Width C.
        num_heads (int): Heads H, each with its rows of P. Defaults to 1.
        activation (str): :math:`\sigma`, ``'leaky_relu'`` (slope 0.2, that
            network's) or ``'tanh'``, which is odd. Defaults to
            ``'leaky_relu'``, a reading: the paper leaves it open.

    Raises:
        ValueError: See :class:`PseudoMetric`, or there is no such activation.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int = 1,
        activation: str = 'leaky_relu',
    ):
        super().__init__(embed_dims, num_heads)
        check_choice('GraphAttention: activation', activation, ACTIVATIONS)
        self.activation = activation
        self.linear = nn.Linear(embed_dims, embed_dims, bias=False)
        heads = (num_heads, embed_dims // num_heads, 1)
        self.receiver = nn.Parameter(torch.empty(heads))
        self.source = nn.Parameter(torch.empty(heads))
        # That network's initialisation.
        for weight in (self.linear.weight, *self.receiver, *self.source):
            nn.init.xavier_uniform_(weight)

    def map_receivers(self, x: Tensor) -> Tensor:
        """Compute alpha_1 P x, (..., N, C) -> (..., H, N, 1)."""
        return self.split_heads(self.linear(x)) @ self.receiver

    def map_sources(self, y: Tensor) -> Tensor:
        """Compute alpha_2 P y, (..., M, C) -> (..., H, M, 1)."""
        return self.split_heads(self.linear(y)) @ self.source

    def compare(self, a: Tensor, b: Tensor) -> Tensor:
        """Evaluate minus sigma of the difference, (..., 1) -> (...)."""
        return -ACTIVATIONS[self.activation](a - b).squeeze(-1)

    def extra_repr(self) -> str:
        """Width, heads and activation, for ``print(model)``."""
        return f'{super().extra_repr()}, activation={self.activation}'
