r"""Information propagation by similarity, as functions.

Towards understanding how attention mechanism works in deep learning,
https://arxiv.org/abs/2412.18288, Section 3, which reads attention as ``S v``
with a similarity matrix S whose rows are softmaxes of a pseudo-metric f:

.. math::
    S_{ij} = \mathrm{softmax}_j(-f(a_i, b_j) / \varepsilon), \qquad
    \mathrm{out} = S v

The paper has :math:`\varepsilon = 1` here. Another ``eps`` is ours. (The
paper's own time scale, Section 3.1, divides by :math:`2 \varepsilon`.)
"""

import math
from collections.abc import Callable
from numbers import Real

import torch
from torch import Tensor

from mmstepnet.precision import full_precision
from mmstepnet.torch_version import (
    compute_dtype,
    has_values,
    is_compiling,
    is_transformed,
    without_autocast,
)

from .masks import check_mask, informed_rows
from .sdpa import propagate

LARGEST_ERROR, LARGEST_HALF_ERROR = 1e-4, 0.5
"""Of a score, which is as much of a weight; the second in half precision."""


def pseudo_metric_propagation(
    f: Callable[[Tensor, Tensor], Tensor],
    a: Tensor,
    b: Tensor,
    v: Tensor,
    eps: float = 1.0,
    mask: Tensor | None = None,
    *,
    is_causal: bool = False,
) -> Tensor:
    r"""Propagate v by any pseudo-metric, pair by pair.

    The definition itself, with the N x M matrix; a sparse mask costs its
    edges alone.

    Args:
        f (Callable): Maps points side by side, (..., d) each and
            broadcastable, to :math:`f(a, b)`, (...).
        a (Tensor): Points that are informed, (..., N, d).
        b (Tensor): Points that inform, (..., M, d).
        v (Tensor): What they send, (..., M, e).
        eps (float): What f is divided by, positive. Defaults to 1.0, the
            paper's.
        mask (Tensor, optional): See :func:`metric_propagation`.
        is_causal (bool): Point i is informed by j <= i only.
            Defaults to False.

    Returns:
        Tensor: (..., N, e).

    Raises:
        ValueError: See :func:`metric_propagation`.
        TypeError: The mask is not bool.
    """
    check_eps(eps)
    dtype, mask = _check(a, b, v, mask, is_causal)
    b, v = _seen(mask, is_causal, b, v)
    if mask is not None and mask.is_sparse:
        return _over_edges(
            mask, v, lambda i, j: -f(_at(a, i), _at(b, j)) / eps
        ).to(dtype)
    with without_autocast(a.device.type):
        scores = (
            -f(
                full_precision(a).unsqueeze(-2),
                full_precision(b).unsqueeze(-3),
            )
            / eps
        )
    return _dense(scores, v, mask, is_causal).to(dtype)


def metric_propagation(
    a: Tensor,
    b: Tensor,
    v: Tensor,
    eps: float = 1.0,
    mask: Tensor | None = None,
    *,
    is_causal: bool = False,
    dense: bool = False,
) -> Tensor:
    r"""Propagate v by closeness, :math:`f(a, b) = \|a - b\|^2`.

    .. math::
        S_{ij} = \mathrm{softmax}_j(-\|a_i - b_j\|^2 / \varepsilon), \qquad
        \mathrm{out} = S v

    Exact, without the N x M matrix: as
    :math:`\|a_i - b_j\|^2 = \|a_i\|^2 - 2 a_i \cdot b_j + \|b_j\|^2` and the
    softmax drops :math:`\|a_i\|^2`, this is a scaled dot product with a bias
    a source, which PyTorch's fused kernels compute. Both sides are centred by
    the mean of b first (of what the mask leaves of it), for which distances
    do not change, so that points far from the origin lose no digits. Points
    that are far from each other would: a score's error is their squared
    spread over eps, times their dtype's. Where that exceeds
    :data:`LARGEST_ERROR`, CPUs compute in float64, and in half precision,
    from :data:`LARGEST_HALF_ERROR` on, in float32 or float64; on other
    devices and in compiled code nothing is checked, and ``dense=True`` loses
    nothing. A sparse mask costs its edges alone.

    Args:
        a (Tensor): Points that are informed, :math:`\tilde f(x_i)`,
            (..., N, d).
        b (Tensor): Points that inform, (..., M, d).
        v (Tensor): What they send, (..., M, e).
        eps (float): What squared distances are divided by, positive, in
            their units: points further than about :math:`\sqrt\varepsilon`
            from the nearest have little say. Defaults to 1.0, the paper's.
        mask (Tensor, optional): Bool, True where j may inform i,
            broadcastable to (..., N, M); or sparse COO (N, M), see
            :func:`neighbourhood`. Defaults to None, all.
        is_causal (bool): Point i is informed by j <= i only, counted from
            the first of both, as PyTorch does. Beside a mask of sources,
            (..., 1, M), that leaves a first point none, as of padding on the
            left, that point gets 0. Defaults to False.
        dense (bool): Take the N x M form, the readable reference; with
            gradients N x M x d. It has derivatives of any order, the other
            form under :func:`torch.nn.attention.sdpa_kernel` with the
            backend MATH. Defaults to False.

    Returns:
        Tensor: (..., N, e). Sources that the mask shows to nobody may hold
        anything, NaN too.

    Raises:
        ValueError: Shapes do not fit, there is no source, ``eps`` is not a
            positive number, or a row of the mask is empty.
        TypeError: The mask is not bool.
    """
    check_eps(eps)
    if _is_sparse(mask) and not dense:
        return pseudo_metric_propagation(
            squared_distance, a, b, v, eps, mask, is_causal=is_causal
        )
    dtype, mask = _check(a, b, v, mask, is_causal)
    b, v = _seen(mask, is_causal, b, v)
    if dense:
        scores = (
            -_squared_distances(full_precision(a), full_precision(b)) / eps
        )
        return _dense(scores, v, mask, is_causal).to(dtype)
    seen = None if mask is None else mask.any(-2, keepdim=True)
    centre = _centre(b.detach(), seen)
    wide = _kept_by(dtype, a.detach(), b.detach(), centre, seen, eps)
    if wide == dtype:
        return propagate(a, b, v.to(dtype), 2 / eps, centre, mask, is_causal)
    a, b, v, centre = (t.to(wide) for t in (a, b, v.to(dtype), centre))
    with without_autocast(a.device.type):
        return propagate(a, b, v, 2 / eps, centre, mask, is_causal).to(dtype)


def dot_product_propagation(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    eps: float = 1.0,
    mask: Tensor | None = None,
    *,
    is_causal: bool = False,
    dense: bool = False,
) -> Tensor:
    r"""Propagate v by the dot product, :math:`f(q, k) = -q \cdot k`.

    .. math::
        S_{ij} = \mathrm{softmax}_j(q_i \cdot k_j / \varepsilon), \qquad
        \mathrm{out} = S v

    The paper has no :math:`1/\sqrt d`; the usual scaled dot product is
    ``eps=math.sqrt(d)``. Arguments, result and errors as in
    :func:`metric_propagation`.
    """
    check_eps(eps)
    if _is_sparse(mask) and not dense:
        return pseudo_metric_propagation(
            minus_dot_product, q, k, v, eps, mask, is_causal=is_causal
        )
    dtype, mask = _check(q, k, v, mask, is_causal)
    k, v = _seen(mask, is_causal, k, v)
    if dense:
        with without_autocast(q.device.type):
            scores = full_precision(q) @ full_precision(k).mT / eps
        return _dense(scores, v, mask, is_causal).to(dtype)
    return propagate(q, k, v.to(dtype), 1 / eps, None, mask, is_causal)


def squared_distance(a: Tensor, b: Tensor) -> Tensor:
    r"""Evaluate :math:`\|a - b\|^2`, (..., d) and (..., d) -> (...)."""
    return (a - b).square().sum(-1)


def minus_dot_product(q: Tensor, k: Tensor) -> Tensor:
    r"""Evaluate :math:`-q \cdot k`, (..., d) and (..., d) -> (...)."""
    return -(q * k).sum(-1)


def check_eps(eps: float) -> None:
    """Refuse what is not a positive finite number.

    Raises:
        ValueError: It is not.
    """
    if (
        isinstance(eps, bool)
        or not isinstance(eps, Real)
        or not 0 < eps < math.inf
        or math.isinf(2 / eps)
    ):
        raise ValueError(
            'eps, the time scale of the similarity, must be a '
            f'positive number, got {eps!r}'
        )


def _is_sparse(mask: Tensor | None) -> bool:
    return isinstance(mask, Tensor) and mask.is_sparse


def _seen(
    mask: Tensor | None, is_causal: bool, b: Tensor, v: Tensor
) -> tuple[Tensor, Tensor]:
    """Sources and what they send, 0 where nobody sees them.

    A weight of 0 would leave NaN and infinity what they are.
    """
    if mask is None or mask.is_sparse:  # edges take what is seen alone
        return b, v
    if is_causal and mask.shape[-2] > 1:
        mask = mask.tril()
    hidden = ~mask.any(-2).unsqueeze(-1)
    return b.masked_fill(hidden, 0), v.masked_fill(hidden, 0)


def _squared_distances(a: Tensor, b: Tensor) -> Tensor:
    if is_transformed() or (
        torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)
    ):
        # cdist has first derivatives by backward alone.
        return squared_distance(a.unsqueeze(-2), b.unsqueeze(-3))
    return torch.cdist(
        a, b, compute_mode='donot_use_mm_for_euclid_dist'
    ).square()


def _check(
    a: Tensor, b: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool
) -> tuple[torch.dtype, Tensor | None]:
    """Refuse what does not fit; the result's dtype, and the mask."""
    if (
        min(a.ndim, b.ndim, v.ndim) < 2
        or not a.shape[:-2] == b.shape[:-2] == v.shape[:-2]
        or a.shape[-1] != b.shape[-1]
        or b.shape[-2] != v.shape[-2]
        or 0 in (*b.shape[-2:], v.shape[-1])
    ):
        raise ValueError(
            'receivers (..., N, d), sources (..., M, d) and values (..., M, '
            'e) are needed, M, d and e at least 1, got '
            f'{", ".join(str(tuple(t.shape)) for t in (a, b, v))}'
        )
    dtype = compute_dtype(a)
    if not (
        dtype == compute_dtype(b) == compute_dtype(v)
        and all(t.is_floating_point() for t in (a, b, v))
    ):
        raise ValueError(
            'receivers, sources and values must be of one '
            f'floating dtype, got {a.dtype}, {b.dtype} and '
            f'{v.dtype}'
        )
    return dtype, check_mask(
        mask, a.shape[-2], b.shape[-2], is_causal, a.shape[:-2]
    )


def _centre(b: Tensor, seen: Tensor | None) -> Tensor:
    """Mean of the sources, (..., 1, d), that somebody sees, (..., 1, M)."""
    b = full_precision(b)
    if seen is None:
        return b.mean(-2, keepdim=True)
    kept = seen.expand(*seen.shape[:-1], b.shape[-2]).to(b.dtype)
    with without_autocast(b.device.type):
        return (kept / kept.sum(-1, keepdim=True)) @ b


def _kept_by(
    dtype: torch.dtype,
    a: Tensor,
    b: Tensor,
    centre: Tensor,
    seen: Tensor | None,
    eps: float,
) -> torch.dtype:
    """The dtype, or a wider one, whose dot product keeps these distances."""
    # Elsewhere a look at values would wait for the device, or is impossible.
    if (
        dtype == torch.float64
        or a.device.type != 'cpu'
        or is_compiling()
        or is_transformed()
    ):
        return dtype
    if a.numel() == 0 or not has_values(a):  # there is no largest
        return dtype
    sources = (full_precision(b) - centre).square().sum(-1, keepdim=True)
    if seen is not None:
        sources = sources.masked_fill(~seen.transpose(-2, -1), 0)
    receivers = (full_precision(a) - centre).square().sum(-1)
    largest = sources.amax().item()
    # |a . b| and |b|² / 2, the terms of a score.
    term = math.sqrt(largest) * max(
        math.sqrt(receivers.amax().item()), math.sqrt(largest) / 2
    )
    score = 2 / eps * term
    if (
        dtype != torch.float32
        and score * torch.finfo(dtype).eps > LARGEST_HALF_ERROR
    ):
        dtype = torch.float32
    if (
        dtype == torch.float32
        and score * torch.finfo(dtype).eps > LARGEST_ERROR
    ):
        dtype = torch.float64
    return dtype


def _dense(
    scores: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool
) -> Tensor:
    if mask is not None:
        mask = mask.to_dense() if mask.is_sparse else mask
        scores = scores.masked_fill(~mask, -math.inf)
    if is_causal:
        later = torch.ones_like(scores, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, -math.inf)
        if mask is not None and mask.shape[-2] == 1:
            alone = ~informed_rows(mask, scores.shape[-2]).unsqueeze(-1)
            with without_autocast(v.device.type):
                weights = scores.masked_fill(alone, 0).softmax(-1)
                return weights.masked_fill(alone, 0) @ v.to(scores.dtype)
    with without_autocast(v.device.type):
        return scores.softmax(-1) @ v.to(scores.dtype)


def _at(x: Tensor, index: Tensor) -> Tensor:
    """Points at one end of the edges, (..., E, d), float32 or better."""
    return full_precision(x.index_select(-2, index))


def _over_edges(mask: Tensor, v: Tensor, score_edges) -> Tensor:
    """Propagate along the edges of a sparse mask (N, M)."""
    i, j = mask.indices()
    scores = score_edges(i, j)
    shape = (*scores.shape[:-1], mask.shape[0])
    # Weights do not depend on the shift; a row's largest keeps them finite.
    highest = scores.new_full(shape, -math.inf).scatter_reduce(
        -1, i.expand_as(scores), scores.detach(), 'amax'
    )
    weights = (scores - highest.index_select(-1, i)).exp()
    total = weights.new_zeros(shape).index_add(-1, i, weights)
    sent = weights.unsqueeze(-1) * _at(v, j)
    out = sent.new_zeros(*shape, v.shape[-1]).index_add(-2, i, sent)
    return out / total.unsqueeze(-1)
