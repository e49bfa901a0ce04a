"""The attention block: a propagation followed by linear maps.

Towards understanding how attention mechanism works in deep learning,
https://arxiv.org/abs/2412.18288, Sections 3.3 and 4.1, Figure 1.
"""

from collections.abc import Callable
from functools import partial

import torch.nn as nn
from torch import Tensor

from .propagation import PropagationModule
from .pseudo_metric import PseudoMetric, check_heads
from .pseudo_metrics import L2, DotProduct, Metric


class AttentionBlock(PropagationModule):
    r"""Propagation followed by linear maps (Figure 1, Section 3.3).

    .. math::
        H_i = S_i H_{old}, \qquad
        H_{new} = [H_1 V_1, \dots, H_k V_k] W

    Each head has its own similarity, and its own slice of the values; a
    linear layer W merges them. With one head V is the block's single matrix.
    (:math:`S (H V)` is computed, which is the same. Biases are ours: the
    paper prints none.)

    Args:
        embed_dims (int): Width C of the tokens, points or nodes.
        num_heads (int): Heads H; divides ``embed_dims``. Defaults to 1.
        eps (float): Time scale :math:`\varepsilon` of
            :math:`S = \mathrm{softmax}(-f_\theta / \varepsilon)`. Defaults
            to 1.0, the paper's: also for the dot product, whose usual
            :math:`1/\sqrt{C/H}` is ``eps=math.sqrt(embed_dims / num_heads)``.
            Others than 1 are ours.
        bias (bool): Whether the linear layers of values and output have
            biases. Defaults to True.
        pseudo_metric (Callable): Class of the pseudo-metric, or another
            function of width and heads, see :class:`Propagation`. Defaults
            to :class:`Metric`.

    Raises:
        ValueError: A width is not a positive integer, the heads do not
            divide it, or ``eps`` is not a positive number.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int = 1,
        eps: float = 1.0,
        bias: bool = True,
        pseudo_metric: Callable[..., PseudoMetric] = Metric,
    ):
        super().__init__(embed_dims, eps)
        check_heads(type(self).__name__, embed_dims, num_heads)
        self.num_heads = num_heads
        self.head_dims = embed_dims // num_heads
        self.value = nn.Linear(embed_dims, embed_dims, bias=bias)
        self.proj = (
            nn.Linear(embed_dims, embed_dims, bias=bias)
            if num_heads > 1
            else nn.Identity()
        )
        self.pseudo_metric = pseudo_metric(embed_dims, num_heads)

    def send(self, sources: Tensor) -> Tensor:
        """Compute values, (..., M, C) -> (..., H, M, C/H)."""
        return self.pseudo_metric.split_heads(self.value(sources))

    def merge(self, informed: Tensor) -> Tensor:
        """Join and map the heads, (..., H, N, C/H) -> (..., N, C)."""
        return self.proj(informed.transpose(-2, -3).flatten(-2))

    def extra_repr(self) -> str:
        """Width, heads and time scale, for ``print(model)``."""
        return (
            f'{self.embed_dims}, num_heads={self.num_heads}, eps={self.eps:g}'
        )


class DotProductAttention(AttentionBlock):
    r"""The usual self-attention, the baseline: with :class:`DotProduct`.

    With ``eps=math.sqrt(embed_dims / num_heads)`` it computes what
    :class:`torch.nn.MultiheadAttention` does; the paper has no such factor.

    Args:
        embed_dims (int): Width C.
        num_heads (int): Heads H. Defaults to 1.
        eps (float): See :class:`AttentionBlock`. Defaults to 1.0.
        bias (bool): Whether linear layers have biases, those of queries and
            keys among them. Defaults to True.

    Raises:
        ValueError: See :class:`AttentionBlock`.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int = 1,
        eps: float = 1.0,
        bias: bool = True,
    ):
        super().__init__(
            embed_dims, num_heads, eps, bias, partial(DotProduct, bias=bias)
        )


class L2Attention(AttentionBlock):
    r"""L2 self-attention: with :class:`L2`.

    The Lipschitz Constant of Self-Attention, ICML 2021,
    https://arxiv.org/abs/2006.04710, whose scale is
    ``eps=math.sqrt(embed_dims / num_heads)``.

    Args:
        embed_dims (int): Width C.
        num_heads (int): Heads H. Defaults to 1.
        eps (float): See :class:`AttentionBlock`. Defaults to 1.0.
        bias (bool): Whether the linear layers of values and output have
            biases. Defaults to True.

    Raises:
        ValueError: See :class:`AttentionBlock`.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int = 1,
        eps: float = 1.0,
        bias: bool = True,
    ):
        super().__init__(embed_dims, num_heads, eps, bias, L2)


class MetricAttention(AttentionBlock):
    r"""Metric-attention (Section 4.1, Algorithm 1): with :class:`Metric`.

    Args:
        embed_dims (int): Width C.
        num_heads (int): Heads H. Defaults to 1.
        eps (float): See :class:`AttentionBlock`. Defaults to 1.0.
        bias (bool): Whether the linear layers of values and output have
            biases. Defaults to True.
        hidden_dims (int, optional): See :class:`Metric`. Defaults to None:
            ``embed_dims``.

    Raises:
        ValueError: See :class:`AttentionBlock`, or ``hidden_dims`` is no
            positive integer.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int = 1,
        eps: float = 1.0,
        bias: bool = True,
        hidden_dims: int | None = None,
    ):
        super().__init__(
            embed_dims,
            num_heads,
            eps,
            bias,
            partial(Metric, hidden_dims=hidden_dims),
        )
