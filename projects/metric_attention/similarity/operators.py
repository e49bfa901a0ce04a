"""The operators that compute similarity, as functions of matrices.

Towards understanding how attention mechanism works in deep learning, Section
2.1: a similarity is initialised, strengthened and normalised. Attention is
N_r of the exponential inflation of a QK-dot product.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from mmstepnet.precision import full_precision


def metric_similarity(distance: Tensor,
                      t: float,
                      c: float | Tensor = 0.0) -> Tensor:
    r"""Metric-based similarity :math:`D_{t,c}`, Definition 1.

    .. math::
        D_{t,c}(x_i, y_j) = c(x_i) - \mathrm{sign}(t)\, d(x_i, y_j)^t

    Args:
        distance (Tensor): Distances :math:`d(x_i, y_j) \ge 0` in any metric,
            (..., N, M); infinite where a graph has no path.
        t (float): Power, not 0. Where it is negative, near points have
            large similarities, which are infinite at distance 0.
        c (float | Tensor): Function :math:`c(x_i)`, a number or (..., N).
            Defaults to 0.

    Returns:
        Tensor: (..., N, M), ascending in closeness.

    Raises:
        ValueError: A distance is negative or not a number, ``t`` is 0 or not
            finite, a distance is 0 where ``t`` is negative, or ``c`` is not
            (..., N).

    Example:
        >>> import torch
        >>> metric_similarity(torch.tensor([[0., 2.]]), 2, c=1.0)
        tensor([[ 1., -3.]])
    """
    distance = _matrix(distance, 'distance')
    if not 0 < abs(t) < float('inf'):
        raise ValueError(f't, the power of the distance, must be a finite '
                         f'number other than 0, got {t!r}')
    _refuse(distance, ~(distance >= 0), 'distance',
            'a distance is a number not below 0')
    if t < 0:
        _refuse(distance, distance == 0, 'distance',
                f'0 to the power t={t:g} is infinite; move or drop the '
                'coinciding points')
    power = distance**t
    return _per_row(c, distance, 'c') - (power if t > 0 else -power)


def qk_dot_product(x: Tensor, y: Tensor, query: Tensor,
                   key: Tensor) -> Tensor:
    r"""QK-dot product, Definition 2.

    .. math::
        s(x_i, y_j) = x_i^\top Q^\top K y_j

    Args:
        x (Tensor): Points, (..., N, d).
        y (Tensor): Points, (..., M, d').
        query (Tensor): Q, (k, d).
        key (Tensor): K, (k, d').

    Returns:
        Tensor: (..., N, M).

    Raises:
        ValueError: Shapes do not fit.
    """
    for name, points, weight in (('query', x, query), ('key', y, key)):
        if (points.ndim < 2 or weight.ndim != 2
                or points.shape[-1] != weight.shape[1]
                or len(query) != len(key)):
            raise ValueError(
                f'{name} must be (k, d), as many rows as the other one and '
                f'as many columns as its points (..., N, d) have, got '
                f'{tuple(weight.shape)} for points {tuple(points.shape)}')
    return (x @ query.mT) @ (y @ key.mT).mT


def local_combination(x: Tensor,
                      neighbours: Tensor,
                      regularization: float = 1e-3) -> Tensor:
    r"""Local combination similarity :math:`L_c`, Definition 3.

    .. math::
        v_i = \sum_{j \in N(i)} \alpha_{ij} v_j, \qquad
        L_c(v_i, v_j) = \alpha_{ij}

    A point is seldom a combination of its neighbours, and then of several,
    so that a reading is needed, locally linear embedding's (Roweis and Saul,
    2000): the weights of a point sum to 1, have the least squared error,
    and are kept small by a term on the diagonal of the neighbours' Gram
    matrix.

    Args:
        x (Tensor): Points, (N, d).
        neighbours (Tensor): Indices N(i), (N, k), int64, without i itself.
        regularization (float): What is added to the diagonal, in units of
            the Gram matrix's trace. Defaults to 1e-3.

    Returns:
        Tensor: (N, N), 0 outside the neighbours; rows sum to 1.

    Raises:
        ValueError: Shapes do not fit, an index is outside or a point its own
            neighbour, or ``regularization`` is not positive.
    """
    if (not x.ndim == neighbours.ndim == 2 or len(x) != len(neighbours)
            or not neighbours.shape[1] or neighbours.dtype != torch.int64):
        raise ValueError('points (N, d) and indices of their neighbours '
                         f'(N, k), int64, are needed, got {tuple(x.shape)} '
                         f'and {tuple(neighbours.shape)}, {neighbours.dtype}')
    own = torch.arange(len(x), device=x.device)[:, None]
    _refuse(neighbours, (neighbours < 0) | (neighbours >= len(x)) |
            (neighbours == own), 'neighbours',
            f'neighbours are other points, from 0 to {len(x) - 1}')
    if not 0 < regularization < float('inf'):
        raise ValueError('regularization must be a positive number, got '
                         f'{regularization!r}')
    apart = x[neighbours] - x[:, None]
    gram = apart @ apart.mT
    trace = gram.diagonal(dim1=1, dim2=2).sum(1)
    # Neighbours that all coincide with the point are equally good.
    added = regularization * torch.where(trace > 0, trace, 1.0)
    eye = torch.eye(neighbours.shape[1], dtype=x.dtype, device=x.device)
    weight = torch.linalg.solve(gram + added[:, None, None] * eye,
                                torch.ones_like(gram[..., 0]))
    weight = weight / weight.sum(1, keepdim=True)
    return x.new_zeros(len(x), len(x)).scatter_add(1, neighbours, weight)


def adjacency_similarity(adjacency: Tensor, k: int) -> Tensor:
    r"""k-th order adjacency similarity :math:`(A^k)_{ij}`, Definition 4.

    Args:
        adjacency (Tensor): Adjacency matrix A, which may have weights,
            (..., N, N).
        k (int): Order, positive.

    Returns:
        Tensor: Number (weight) of walks of k edges, (..., N, N).

    Raises:
        ValueError: The matrix is not square, or ``k`` is no positive integer.
    """
    adjacency = _matrix(adjacency, 'adjacency', square=True)
    if not isinstance(k, int) or isinstance(k, bool) or k < 1:
        raise ValueError(f'k, the order, must be a positive integer, got '
                         f'{k!r}')
    return torch.linalg.matrix_power(adjacency, k)


def inflation(m: Tensor, r: float) -> Tensor:
    r"""Inflation :math:`\Gamma_r`, Definition 5.

    .. math::
        \Gamma_r(M)_{ij} = \mathrm{sign}(r)\, M_{ij}^r

    Args:
        m (Tensor): Similarities, (..., N, M).
        r (float): Power, not 0. By a negative one, -1 of negative
            similarities above all, they stay ascending in closeness.

    Returns:
        Tensor: (..., N, M).

    Raises:
        ValueError: ``r`` is 0 or not finite, a power is not a real number (of
            a negative similarity and a broken ``r``) or infinite (of 0 and a
            negative ``r``).
    """
    m = _matrix(m, 'm')
    if not 0 < abs(r) < float('inf'):
        raise ValueError(f'r, the power, must be a finite number other than '
                         f'0, got {r!r}')
    power = m**r
    _refuse(m, ~power.isfinite(), 'm',
            f'its power r={r:g} is not a finite number')
    return power if r > 0 else -power


def exponential_inflation(m: Tensor, sigma: float | Tensor) -> Tensor:
    r"""Exponential inflation :math:`\Gamma^\circ_\sigma`, Definition 6.

    .. math::
        \Gamma^\circ_\sigma(M)_{ij} = e^{M_{ij} / \sigma_i}

    Args:
        m (Tensor): Similarities, (..., N, M); minus infinity gives 0.
        sigma (float | Tensor): :math:`\sigma_i > 0`, a number or (..., N).

    Returns:
        Tensor: Positive, (..., N, M).

    Raises:
        ValueError: ``sigma`` is not positive or of another shape, or a
            similarity is too large for its exponential.
    """
    m = _matrix(m, 'm')
    scale = _per_row(sigma, m, 'sigma')
    if not ((scale > 0) & scale.isfinite()).all():
        raise ValueError('sigma must be positive and finite, got '
                         f'{sigma if scale.numel() == 1 else scale.min()}')
    strong = (m / scale).exp()
    _refuse(m, ~strong.isfinite(), 'm', 'its exponential is not finite; '
            'subtract the largest of each row, which N_r does not see')
    return strong


def normalize_rows(m: Tensor) -> Tensor:
    r"""Row normalisation :math:`M_{ij} / \sum_k M_{ik}`, Definition 7.

    Args:
        m (Tensor): Similarities, not negative, (..., N, M).

    Returns:
        Tensor: (..., N, M), whose rows sum to 1.

    Raises:
        ValueError: A similarity is negative or not finite, or all of a row
            are 0.
    """
    return _normalize(m, lambda m: m.sum(-1, keepdim=True), 'row')


def normalize_columns(m: Tensor) -> Tensor:
    r"""Column normalisation :math:`M_{ij} / \sum_k M_{kj}`, Definition 8.

    Arguments, result and errors as in :func:`normalize_rows`, for columns.
    """
    return _normalize(m, lambda m: m.sum(-2, keepdim=True), 'column')


def normalize_two_sides(m: Tensor) -> Tensor:
    r"""Two-side normalisation, Definition 9.

    .. math::
        N_2(M)_{ij} = \frac{M_{ij}}{\sum_k M_{ik} \sum_k M_{jk}}

    Arguments, result and errors as in :func:`normalize_rows`, of a square
    matrix (..., N, N).
    """
    m = _matrix(m, 'm', square=True)
    return _normalize(
        m, lambda m: m.sum(-1, keepdim=True) * m.sum(-1)[..., None, :], 'row')


def normalize_globally(m: Tensor) -> Tensor:
    r"""Global normalisation :math:`M_{ij} / \sum_{kl} M_{kl}`, Definition 10.

    Arguments, result and errors as in :func:`normalize_rows`.
    """
    return _normalize(m, lambda m: m.sum((-2, -1), keepdim=True), 'matrix')


def _normalize(m: Tensor, total: Callable[[Tensor], Tensor],
               what: str) -> Tensor:
    m = _matrix(m, 'm')
    _refuse(m, ~((m >= 0) & m.isfinite()), 'm',
            'a similarity to be normalised is a finite number not below 0')
    wide = full_precision(m)  # sums may exceed what half precision holds
    sums = total(wide)
    _refuse(sums, sums == 0, 'the sums',
            f'all similarities of that {what} are 0, and so they cannot sum '
            'to 1')
    _refuse(sums, sums.isinf(), 'the sums',
            f'the similarities of that {what} sum to more than {sums.dtype} '
            'holds; divide all of them by their largest first')
    return (wide / sums).to(m.dtype)


def _matrix(m: Tensor, name: str, square: bool = False) -> Tensor:
    shape = '(..., N, N)' if square else '(..., N, M)'
    if m.ndim < 2 or square and m.shape[-1] != m.shape[-2]:
        raise ValueError(f'{name} must be {shape}, got {tuple(m.shape)}')
    if not m.is_floating_point():
        raise ValueError(f'{name} must be of a floating dtype, got {m.dtype}; '
                         f'call {name}.double()')
    return m


def _per_row(value: float | Tensor, m: Tensor, name: str) -> Tensor:
    """A number, or one a row of m, so that it broadcasts with m."""
    value = torch.as_tensor(value, dtype=m.dtype, device=m.device)
    if value.ndim and value.shape != m.shape[:-1]:
        raise ValueError(f'{name} must be a number or one a row, '
                         f'{tuple(m.shape[:-1])}, got {tuple(value.shape)}')
    return value[..., None]


def _refuse(m: Tensor, wrong: Tensor, name: str, why: str) -> None:
    """Name the first value that is wrong, if any."""
    if wrong.any():
        where = tuple(wrong.nonzero()[0].tolist())
        raise ValueError(f'{name} is {m[where].item():g} at {where}: {why}')
