r"""The propagation S . H.

Towards understanding how attention mechanism works in deep learning,
https://arxiv.org/abs/2412.18288, Sections 3.1 and 4.2.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch.nn as nn
from torch import Tensor

from .functional import check_eps
from .pseudo_metric import PseudoMetric
from .pseudo_metrics import Metric

OF_MULTIHEAD_ATTENTION = dict(
    key_padding_mask='give mask=~key_padding_mask[:, None]',
    attn_mask='give mask=~attn_mask of a bool one, and mask=attn_mask == 0 of '
    'one that is added to the scores',
    need_weights='leave it out, because the tokens are returned alone',
    average_attn_weights='leave it out, because the tokens are returned alone',
)
"""What stands here for an argument of :class:`torch.nn.MultiheadAttention`."""


class ProjectedSources(NamedTuple):
    """Points that inform others, as a propagation needs them.

    What ``project`` makes, so that sources that inform again and again are
    mapped once, as when a translation is decoded token by token.

    Attributes:
        keys (Tensor): What the pseudo-metric compares, (..., H, M, D).
        values (Tensor): What they send, (..., H, M, E).
    """

    keys: Tensor
    values: Tensor


class PropagationModule(nn.Module):
    """The common part of the propagation and of the attention block.

    Subclasses set ``pseudo_metric``, a :class:`PseudoMetric`.

    Args:
        embed_dims (int): Width C of the tokens, points or nodes.
        eps (float): What the pseudo-metric is divided by.

    Raises:
        ValueError: ``eps`` is not a positive number.
    """

    pseudo_metric: PseudoMetric

    def __init__(self, embed_dims: int, eps: float):
        super().__init__()
        check_eps(eps)
        self.embed_dims = embed_dims
        self.eps = eps

    def send(self, sources: Tensor) -> Tensor:
        """Values that points send, (..., M, C) -> (..., H, M, E)."""
        raise NotImplementedError

    def merge(self, informed: Tensor) -> Tensor:
        """Join the heads, (..., H, N, E) -> (..., N, C)."""
        raise NotImplementedError

    def project(self, sources: Tensor) -> ProjectedSources:
        """Map points that inform, once for all that they will inform.

        Args:
            sources (Tensor): (..., M, C).

        Raises:
            ValueError: They are of another width.
        """
        self._check_points('sources', sources)
        return ProjectedSources(
            self.pseudo_metric.map_sources(sources), self.send(sources)
        )

    def forward(
        self,
        x: Tensor,
        sources: Tensor | ProjectedSources | None = None,
        *others: Any,
        mask: Tensor | None = None,
        is_causal: bool = False,
        dense: bool = False,
        **options: Any,
    ) -> Tensor:
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
            *others: Refused, as are further names: a call of
                :class:`torch.nn.MultiheadAttention` has them.
            **options: Refused.

        Returns:
            Tensor: (..., N, C).

        Raises:
            ValueError: See :func:`metric_propagation`.
            TypeError: There are others or options.
        """
        self._refuse(others, options)
        self._check_points('x', x)
        sources = x if sources is None else sources
        mapped = self.pseudo_metric.tied and sources is x
        if not isinstance(sources, ProjectedSources):
            sources = self.project(sources)
        if isinstance(mask, Tensor) and not mask.is_sparse and mask.ndim > 2:
            mask = mask.unsqueeze(-3)
        return self.merge(
            self.pseudo_metric.propagate(
                sources.keys
                if mapped
                else self.pseudo_metric.map_receivers(x),
                *sources,
                self.eps,
                mask,
                is_causal=is_causal,
                dense=dense,
            )
        )

    def extra_repr(self) -> str:
        """The width and the time scale, for ``print(model)``."""
        return f'{self.embed_dims}, eps={self.eps:g}'

    def _refuse(self, others: tuple, options: dict[str, Any]) -> None:
        """Answer a call that was written for another attention."""
        name = type(self).__name__
        if others:
            raise TypeError(
                f'{name} makes keys and values of the sources: in place of '
                f'attention(query, key, value)[0] call attention(x), or '
                f'attention(x, sources) where other points inform x'
            )
        if options:
            option = next(iter(options))
            remedy = OF_MULTIHEAD_ATTENTION.get(
                option, 'it takes sources, mask, is_causal and dense'
            )
            raise TypeError(f'{name} takes no {option}: {remedy}')

    def _check_points(self, name: str, points: Tensor) -> None:
        if points.ndim < 2 or points.shape[-1] != self.embed_dims:
            raise ValueError(
                f'{type(self).__name__}: {name} must be (..., points, '
                f'{self.embed_dims}), got {tuple(points.shape)}'
            )


class Propagation(PropagationModule):
    r"""The information propagation module: ``H_new = S H_old``, no more.

    .. math::
        S_{ij} = \mathrm{softmax}_j(-f_\theta(x_i, x_j) / \varepsilon)

    Neither a value matrix nor a linear layer (Section 4.2); all that it
    learns is the pseudo-metric :math:`f_\theta`.

    Args:
        embed_dims (int): Width C of the tokens, points or nodes.
        pseudo_metric (Callable): Class of the pseudo-metric, or another
            function of the width that returns a :class:`PseudoMetric`, such
            as ``functools.partial(Metric, hidden_dims=64)``. Defaults to
            :class:`Metric`.
        eps (float): Time scale :math:`\varepsilon`, in the units of
            :math:`f_\theta`. Defaults to 1.0, the paper's; others are ours.

    Raises:
        ValueError: ``embed_dims`` is not a positive integer, or ``eps`` not a
            positive number.

    Example:
        >>> import torch
        >>> from mmstepnet.propagation import DotProduct, Propagation
        >>> informed = Propagation(8, DotProduct)
        >>> tuple(informed(torch.randn(5, 8)).shape)
        (5, 8)
    """

    def __init__(
        self,
        embed_dims: int,
        pseudo_metric: Callable[..., PseudoMetric] = Metric,
        eps: float = 1.0,
    ):
        super().__init__(embed_dims, eps)
        self.pseudo_metric = pseudo_metric(embed_dims)

    def send(self, sources: Tensor) -> Tensor:
        """Points send themselves, (..., M, C) -> (..., 1, M, C)."""
        return sources.unsqueeze(-3)

    def merge(self, informed: Tensor) -> Tensor:
        """Take the one head, (..., 1, N, C) -> (..., N, C)."""
        return informed.squeeze(-3)
