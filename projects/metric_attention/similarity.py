r"""Classical methods as similarity computation, Section 2 of the paper.

Towards understanding how attention mechanism works in deep learning,
https://arxiv.org/abs/2412.18288: a similarity is initialised, strengthened
and normalised. First the operators, equations 1 to 10, as functions of
matrices; then the methods of Table 1 and Sections 2.2.2 to 2.2.4, composed of
them as the table has it. Attention is N_r of the exponential inflation of a
QK-dot product. Embeddings follow from a similarity by an eigenproblem. SNE's,
t-SNE's and UMAP's follow by descent on a divergence between two similarities,
which is no similarity computation and is not here.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

BISECTIONS = 200
"""Halvings of an interval of logarithms, enough for float64."""

NEAREST = 1e-150
"""Distance that coinciding points have here, so that 0 is not divided by."""


def metric_similarity(distance: Tensor, t: float,
                      c: float | Tensor = 0.0) -> Tensor:
    r"""Metric-based similarity, Definition 1.

    .. math::
        D_{t,c}(x_i, y_j) = c(x_i) - \mathrm{sign}(t)\, d(x_i, y_j)^t

    Args:
        distance (Tensor): Distances d, (..., N, M); infinite where a graph
            has no path.
        t (float): Power, not 0.
        c (float | Tensor): Function c(x_i), a number or (..., N). Defaults
            to 0.

    Returns:
        Tensor: (..., N, M), ascending in closeness.
    """
    c = torch.as_tensor(c, dtype=distance.dtype)[..., None]
    return c - math.copysign(1, t) * distance**t


def qk_dot_product(x: Tensor, y: Tensor, query: Tensor,
                   key: Tensor) -> Tensor:
    """QK-dot product x^T Q^T K y, Definition 2.

    Args:
        x (Tensor): Points, (..., N, d).
        y (Tensor): Points, (..., M, d').
        query (Tensor): Q, (k, d).
        key (Tensor): K, (k, d').

    Returns:
        Tensor: (..., N, M).
    """
    return (x @ query.mT) @ (y @ key.mT).mT


def local_combination(x: Tensor, neighbours: Tensor,
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
    """
    apart = x[neighbours] - x[:, None]
    gram = apart @ apart.mT
    trace = gram.diagonal(dim1=1, dim2=2).sum(1)
    # Neighbours that all coincide with the point are equally good.
    added = regularization * torch.where(trace > 0, trace, 1.0)
    eye = torch.eye(neighbours.shape[1], dtype=x.dtype)
    weight = torch.linalg.solve(gram + added[:, None, None] * eye,
                                torch.ones_like(gram[..., 0]))
    weight = weight / weight.sum(1, keepdim=True)
    return x.new_zeros(len(x), len(x)).scatter_add(1, neighbours, weight)


def adjacency_similarity(adjacency: Tensor, k: int) -> Tensor:
    """k-th order adjacency similarity (A^k)_ij, Definition 4, (..., N, N)."""
    return torch.linalg.matrix_power(adjacency, k)


def inflation(m: Tensor, r: float) -> Tensor:
    r"""Inflation :math:`\mathrm{sign}(r)\, M_{ij}^r`, Definition 5.

    Args:
        m (Tensor): Similarities, (..., N, M).
        r (float): Power, not 0. By a negative one, -1 of negative
            similarities above all, they stay ascending in closeness.

    Returns:
        Tensor: (..., N, M).
    """
    return math.copysign(1, r) * m**r


def exponential_inflation(m: Tensor, sigma: float | Tensor) -> Tensor:
    r"""Exponential inflation :math:`e^{M_{ij} / \sigma_i}`, Definition 6.

    Args:
        m (Tensor): Similarities, (..., N, M); minus infinity gives 0.
        sigma (float | Tensor): Positive, a number or (..., N).

    Returns:
        Tensor: (..., N, M).
    """
    return (m / torch.as_tensor(sigma, dtype=m.dtype)[..., None]).exp()


def normalize_rows(m: Tensor) -> Tensor:
    """N_r, M_ij / Σ_k M_ik, Definition 7, (..., N, M)."""
    return m / _positive(m.sum(-1, keepdim=True))


def normalize_columns(m: Tensor) -> Tensor:
    """N_c, M_ij / Σ_k M_kj, Definition 8, (..., N, M)."""
    return m / _positive(m.sum(-2, keepdim=True))


def normalize_two_sides(m: Tensor) -> Tensor:
    """N_2, M_ij / (Σ_k M_ik Σ_k M_jk), Definition 9, (..., N, N)."""
    sums = _positive(m.sum(-1, keepdim=True))
    return m / (sums * sums.mT)


def normalize_globally(m: Tensor) -> Tensor:
    """N_g, M_ij / Σ_kl M_kl, Definition 10, (..., N, M)."""
    return m / _positive(m.sum((-2, -1), keepdim=True))


def _positive(sums: Tensor) -> Tensor:
    if not ((sums > 0) & sums.isfinite()).all():
        raise ValueError('similarities that are normalised must have sums '
                         'that are positive and finite; one of theirs is '
                         f'{sums[~((sums > 0) & sums.isfinite())][0]:g}')
    return sums


def euclidean(x: Tensor, y: Tensor) -> Tensor:
    """Distances, (N, d) and (M, d) -> (N, M)."""
    return torch.cdist(x, y, compute_mode='donot_use_mm_for_euclid_dist')


def nearest(distance: Tensor, k: int) -> Tensor:
    """Indices of the k nearest other points, (N, N) -> (N, k)."""
    others = distance.clone().fill_diagonal_(torch.inf)
    return others.topk(k, largest=False).indices


def graph_distance(x: Tensor, k: int) -> Tensor:
    """Lengths of the shortest paths between neighbours, (N, d) -> (N, N).

    A point is joined to its k nearest, and to those whose k nearest it is
    among. Points without a path are at infinity.
    """
    distance = euclidean(x, x)
    path = torch.full_like(distance, torch.inf).fill_diagonal_(0)
    index = nearest(distance, k)
    path.scatter_(1, index, distance.gather(1, index))
    path = torch.minimum(path, path.T)
    for via in range(len(x)):  # Floyd and Warshall
        path = torch.minimum(path, path[:, via, None] + path[via])
    return path


def mds(x: Tensor) -> Tensor:
    """Multidimensional scaling: D_{1,0}, (N, d) -> (N, N)."""
    return metric_similarity(euclidean(x, x), 1)


def isomap(x: Tensor, k: int) -> Tensor:
    """Isomap: D_{1,0} on the graph of k neighbours, (N, d) -> (N, N)."""
    return metric_similarity(graph_distance(x, k), 1)


def locally_linear_embedding(x: Tensor, k: int) -> Tensor:
    """Locally linear embedding: L_c, (N, d) -> (N, N)."""
    return local_combination(x, nearest(euclidean(x, x), k))


def gaussian_kernel(x: Tensor, y: Tensor, sigma: float) -> Tensor:
    """Kernel exp(-|x - y|² / σ): Γ°_σ of D_{2,0}, (N, M).

    Of x and x it is that of Laplacian eigenmaps, every two points joined.
    """
    return exponential_inflation(
        metric_similarity(euclidean(x, y), 2), sigma)


def diffusion_map(x: Tensor, sigma: float) -> Tensor:
    """Diffusion map (Laplace-Beltrami's, alpha 1), a Markov matrix (N, N)."""
    return normalize_rows(normalize_two_sides(gaussian_kernel(x, x, sigma)))


def sne(x: Tensor, sigma: Tensor) -> Tensor:
    """Stochastic neighbour embedding: p_{j|i}, (N, N), 0 of itself.

    Args:
        x (Tensor): Points, (N, d).
        sigma (Tensor): Of each, (N,); twice a Gaussian's variance.
    """
    distance = euclidean(x, x).fill_diagonal_(torch.inf)
    # D_{2,c} instead of D_{2,0}: rows forget c, without which small scales
    # leave a row of zeros.
    return normalize_rows(exponential_inflation(
        metric_similarity(distance, 2, distance.amin(1)**2), sigma))


def tsne(x: Tensor, sigma: Tensor) -> Tensor:
    """t-SNE's similarity of the data, p_ij, (N, N); see :func:`sne`.

    The printed row is damaged. As van der Maaten and Hinton (2008) have it,
    the rows are normalised too, as SNE's, before W / 2 + W^T / 2.
    """
    similarity = sne(x, sigma)
    return normalize_globally(similarity / 2 + similarity.T / 2)


def tsne_embedded(y: Tensor) -> Tensor:
    """t-SNE's similarity of the embedding, q_ij: D_{2,-1}, Γ_{-1} and N_g.

    (N, d) -> (N, N), 0 of itself.
    """
    similarity = inflation(metric_similarity(euclidean(y, y), 2, -1.0), -1)
    return normalize_globally(similarity.fill_diagonal_(0))


def umap(x: Tensor, k: int) -> Tensor:
    """UMAP's similarity of the data: D_{1,c}, Γ°_σ, then W + Wᵀ - W ∘ Wᵀ.

    The printed row is damaged: c and σ are McInnes et al.'s (2018), the
    distance of the nearest and what lets the k nearest sum to log2(k).

    Args:
        x (Tensor): Points, (N, d).
        k (int): Number of neighbours, 3 or more; others have similarity 0.

    Returns:
        Tensor: (N, N), symmetric.
    """
    distance = euclidean(x, x)
    index = nearest(distance, k)
    near = torch.full_like(distance, torch.inf)
    near.scatter_(1, index, distance.gather(1, index))
    similarity = metric_similarity(near, 1, near.amin(1))
    sigma = solve_scales(
        lambda s: exponential_inflation(similarity, s).sum(1), math.log2(k),
        x)
    w = exponential_inflation(similarity, sigma)
    return w + w.T - w * w.T


def umap_embedded(y: Tensor, a: float, b: float) -> Tensor:
    """UMAP's similarity of the embedding, 1 / (1 + a |y - y'|^{2b}), (N, N).

    D_{2b,-1} of distances in units of a^{-1/2b}, then Γ_{-1}.
    """
    distance = a**(0.5 / b) * euclidean(y, y)
    return inflation(metric_similarity(distance, 2 * b, -1.0), -1)


def perplexity_scales(x: Tensor, perplexity: float) -> Tensor:
    """Scales at which each row of :func:`sne` has that perplexity, (N,)."""
    return solve_scales(
        lambda sigma: torch.special.entr(sne(x, sigma)).sum(1),
        math.log(perplexity), x)


def solve_scales(ascending: Callable[[Tensor], Tensor], target: float,
                 x: Tensor) -> Tensor:
    """Scales (N,) at which a function of them, one value a row, is target.

    Raises:
        ValueError: There is none: points coincide, or the target is out of
            reach.
    """
    reach = 14 + float(x.var(0).sum().log().abs())
    low, high = torch.full((2, len(x)), reach, dtype=x.dtype)
    low = -low
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        below = ascending(middle.exp()) < target
        low = torch.where(below, middle, low)
        high = torch.where(below, high, middle)
    stuck = (low == -reach) | (high == reach)
    if stuck.any():
        raise ValueError(f'no scale of point {int(stuck.nonzero()[0])} gives '
                         f'the target {target:g}: drop coinciding points, or '
                         'ask for another number of neighbours')
    return middle.exp()


def classical_scaling(similarity: Tensor, dims: int) -> Tensor:
    """Points whose distances are those of D_{1,0}: (N, N) -> (N, dims)."""
    squared = similarity**2
    squared = squared - squared.mean(0)
    gram = -(squared - squared.mean(1, keepdim=True)) / 2
    value, vector = torch.linalg.eigh(gram)
    return (vector[:, -dims:] * value[-dims:].sqrt()).flip(1)


def bottom_vectors(weights: Tensor, dims: int) -> Tensor:
    """LLE's embedding, unit vectors that the weights keep, (N, dims)."""
    rest = torch.eye(len(weights), dtype=weights.dtype) - weights
    return torch.linalg.eigh(rest.T @ rest).eigenvectors[:, 1:dims + 1]


def laplacian_vectors(similarity: Tensor, dims: int) -> Tensor:
    """Laplacian eigenmaps, L f = λ D f with fᵀ D f = 1, (N, dims).

    A point is no neighbour of itself.
    """
    w = similarity.clone().fill_diagonal_(0)
    root = w.sum(1).sqrt()
    symmetric = w / root / root[:, None]
    vector = torch.linalg.eigh(symmetric).eigenvectors[:, -dims - 1:-1]
    return (vector / root[:, None]).flip(1)


def diffusion_coordinates(x: Tensor, sigma: float, time: int) -> Tensor:
    """All diffusion coordinates λ^t ψ, whose distances are diffusion's.

    Args:
        x (Tensor): Points, (N, d).
        sigma (float): As for :func:`diffusion_map`.
        time (int): Number t of steps of its Markov chain.

    Returns:
        Tensor: (N, N - 1), those of the largest eigenvalues first.
    """
    kernel = normalize_two_sides(gaussian_kernel(x, x, sigma))
    degree = kernel.sum(1)
    symmetric = kernel / (degree * degree[:, None]).sqrt()
    value, vector = torch.linalg.eigh(symmetric)
    vector = vector / (degree / degree.sum()).sqrt()[:, None]
    return (vector * value**time)[:, :-1].flip(1)


def memberships(x: Tensor, centres: Tensor, m: float) -> Tensor:
    """Fuzzy memberships, N_c of D_{-2/(m-1),0}: (C, N), columns sum to 1.

    Args:
        x (Tensor): Points, (N, d).
        centres (Tensor): (C, d). A point on one belongs to it alone.
        m (float): Fuzziness, above 1; 1 is k-means.
    """
    distance = euclidean(centres, x).clamp_min(NEAREST)
    # Columns forget their scale, without which powers overflow near m = 1.
    similarity = metric_similarity(distance / distance.amin(0), -2 / (m - 1))
    return normalize_columns(similarity)


def fuzzy_c_means(x: Tensor, centres: Tensor, m: float, steps: int,
                  power: float = 1.0) -> tuple[Tensor, Tensor]:
    """Fuzzy c-means: S = N_r ∘ N_c of D_{-2/(m-1),0}, and centres S x.

    As printed nothing is strengthened. Bezdek et al. (1984) weigh a point by
    its membership to the power m, an inflation Γ_m between the two
    normalisations. At the limit m = 1 they are one, k-means.

    Args:
        x (Tensor): Points, (N, d).
        centres (Tensor): To start from, (C, d).
        m (float): Fuzziness, above 1.
        steps (int): How often similarities and centres are renewed.
        power (float): Of the inflation; 1 as printed, m as Bezdek's.
            Defaults to 1.

    Returns:
        tuple: Memberships (C, N) and the centres (C, d) that follow from
        them.
    """
    for _ in range(steps):
        member = memberships(x, centres, m)
        centres = normalize_rows(inflation(member, power)) @ x
    return member, centres


def markov_clustering(weights: Tensor, steps: int) -> Tensor:
    """Markov clustering: S = N_r ∘ Γ_2 of H², and H = S I.

    Args:
        weights (Tensor): Edges and self-loops H_0, not negative, (N, N).
        steps (int): How often.

    Returns:
        Tensor: H, (N, N): nodes with the same row are a cluster.
    """
    for _ in range(steps):
        weights = normalize_rows(inflation(
            adjacency_similarity(weights, 2), 2))
    return weights


def k_nearest(x: Tensor, new: Tensor, k: int) -> Tensor:
    """K-nearest neighbours: s = N_c(A), with A_i = 1 for the k nearest.

    Args:
        x (Tensor): Labelled points, (N, d).
        new (Tensor): Points to be labelled, (M, d).
        k (int): Number of neighbours.

    Returns:
        Tensor: (N, M), a column for each new point; labels y (N, ...) become
        ``s.T @ y``.
    """
    similarity = metric_similarity(euclidean(x, new), 1)
    index = similarity.topk(k, dim=0).indices
    return normalize_columns(
        torch.zeros_like(similarity).scatter(0, index, 1.0))


def support_vectors(kernel: Tensor, alpha: Tensor) -> Tensor:
    """Support vector machine: s_i = α_i K(x, x_i).

    Args:
        kernel (Tensor): Of labelled and new points, (N, M).
        alpha (Tensor): α_i, 0 where the point supports nothing, (N,).

    Returns:
        Tensor: (N, M), a column for each new point, of the class
        ``sign(s.T @ y + b)`` for labels y of 1 and -1.
    """
    return alpha[:, None] * kernel


def graph_convolution(adjacency: Tensor) -> Tensor:
    """Graph convolution's S: Γ_1/2 ∘ N_2 of A + I, (N, N).

    Semi-Supervised Classification with Graph Convolutional Networks,
    https://arxiv.org/abs/1609.02907: D^(-1/2) (A + I) D^(-1/2), of which this
    is another form where A has entries 0 and 1. The formula of our copy is
    lost.

    Args:
        adjacency (Tensor): A, symmetric, of 0 and 1, zero on its diagonal,
            (N, N).
    """
    loops = torch.eye(len(adjacency), dtype=adjacency.dtype)
    return inflation(normalize_two_sides(adjacency + loops), 0.5)


def diffusion(laplacian: Tensor, t: float) -> Tensor:
    """DiffusionNet's S: exp(-t L), heat diffusion for a learned time, (N, N).

    DiffusionNet: Discretization Agnostic Learning on Surfaces,
    https://arxiv.org/abs/2012.00888. The formula of our copy is lost.

    Args:
        laplacian (Tensor): L, positive semidefinite, (N, N).
        t (float): Time, not negative.
    """
    return torch.linalg.matrix_exp(-t * laplacian)
