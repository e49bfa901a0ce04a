"""The common part of all pseudo-metrics.

Towards understanding how attention mechanism works in deep learning,
https://arxiv.org/abs/2412.18288, Section 3.1.
"""

import torch.nn as nn
from torch import Tensor

from mmstepnet.checks import check_positive

from .functional import pseudo_metric_propagation


class PseudoMetric(nn.Module):
    r"""A learnable :math:`f_\theta(x, y)`, small where y is close to x.

    Attention makes its similarity :math:`S_{ij} = \mathrm{softmax}_j
    (-f_\theta(x_i, x_j))` of it. Subclasses map points to where they are
    compared, a slice of the width for each head, and compare them there.

    Args:
        embed_dims (int): Width C of the points.
        num_heads (int): Heads H, each with a pseudo-metric of its own on the
            whole point; divides ``embed_dims``. Defaults to 1.

    Raises:
        ValueError: A number is not a positive integer, or the heads do not
            divide the width.
    """

    tied = False
    """Whether receivers and sources are mapped alike."""

    def __init__(self, embed_dims: int, num_heads: int = 1):
        super().__init__()
        check_heads(type(self).__name__, embed_dims, num_heads)
        self.embed_dims = embed_dims
        self.num_heads = num_heads

    def map_receivers(self, x: Tensor) -> Tensor:
        """Map points that are informed, (..., N, C) -> (..., H, N, D)."""
        raise NotImplementedError

    def map_sources(self, y: Tensor) -> Tensor:
        """Map points that inform, (..., M, C) -> (..., H, M, D)."""
        raise NotImplementedError

    def compare(self, a: Tensor, b: Tensor) -> Tensor:
        """Evaluate f of mapped points side by side.

        Args:
            a (Tensor): Mapped receivers, (..., D).
            b (Tensor): Mapped sources, broadcastable, (..., D).

        Returns:
            Tensor: (...).
        """
        raise NotImplementedError

    def propagate(
        self,
        a: Tensor,
        b: Tensor,
        v: Tensor,
        eps: float = 1.0,
        mask: Tensor | None = None,
        *,
        is_causal: bool = False,
        dense: bool = False,
    ) -> Tensor:
        """Weigh v by the similarity of mapped points.

        This form serves any ``compare`` and has the N x M matrix; on the
        edges of a sparse mask it has not.

        Args:
            a (Tensor): Mapped receivers, (..., H, N, D).
            b (Tensor): Mapped sources, (..., H, M, D).
            v (Tensor): What they send, (..., H, M, E).
            eps (float): See :func:`metric_propagation`. Defaults to 1.0.
            mask (Tensor, optional): See :func:`metric_propagation`.
            is_causal (bool): Defaults to False.
            dense (bool): Take the N x M form though the mask is sparse.
                Defaults to False.

        Returns:
            Tensor: (..., H, N, E).
        """
        if dense and isinstance(mask, Tensor) and mask.is_sparse:
            mask = mask.to_dense()
        return pseudo_metric_propagation(
            self.compare, a, b, v, eps, mask, is_causal=is_causal
        )

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        r"""Evaluate :math:`f_\theta` on all pairs.

        Args:
            x (Tensor): (..., N, C).
            y (Tensor, optional): (..., M, C). Defaults to None: x.

        Returns:
            Tensor: (..., H, N, M).
        """
        a, b = self.map_receivers(x), self.map_sources(x if y is None else y)
        return self.compare(a.unsqueeze(-2), b.unsqueeze(-3))

    def extra_repr(self) -> str:
        """Width and heads, for ``print(model)``."""
        return f'{self.embed_dims}, num_heads={self.num_heads}'

    def split_heads(self, x: Tensor) -> Tensor:
        """Take apart (..., N, C) into (..., H, N, C/H)."""
        return x.unflatten(-1, (self.num_heads, -1)).transpose(-2, -3)


def check_heads(what: str, embed_dims: int, num_heads: int) -> None:
    """Refuse heads that do not divide the width.

    Raises:
        ValueError: They do not, or are no positive integers.
    """
    check_positive(what, embed_dims=embed_dims, num_heads=num_heads)
    if embed_dims % num_heads:
        raise ValueError(
            f'{what}: num_heads must divide embed_dims, got '
            f'{num_heads} heads for {embed_dims}'
        )
