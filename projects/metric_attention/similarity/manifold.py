"""Manifold learning as similarity computation, Table 1 of the paper.

Each method is a composition of :mod:`.operators`, written as the table has
it; embeddings follow from the similarity by an eigenproblem, or (SNE, t-SNE,
UMAP) by descent on a divergence between two similarities, which is no
similarity computation and is not here.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from projects.metric_attention.similarity.operators import (
    exponential_inflation,
    inflation,
    local_combination,
    metric_similarity,
    normalize_globally,
    normalize_rows,
    normalize_two_sides,
)

BISECTIONS = 200
"""Halvings of an interval of logarithms, enough for float64."""


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


def laplacian_eigenmaps(x: Tensor, sigma: float) -> Tensor:
    """Laplacian eigenmaps, every two points joined: D_{2,0}, then inflation.

    Args:
        x (Tensor): Points, (N, d).
        sigma (float): Time scale of the heat kernel, of squared distance.

    Returns:
        Tensor: (N, N).
    """
    return exponential_inflation(
        metric_similarity(euclidean(x, x), 2), sigma)


def diffusion_map(x: Tensor, sigma: float) -> Tensor:
    """Diffusion map (Laplace-Beltrami's, alpha 1), a Markov matrix (N, N)."""
    return normalize_rows(normalize_two_sides(laplacian_eigenmaps(x, sigma)))


def sne(x: Tensor, sigma: Tensor) -> Tensor:
    """Stochastic neighbour embedding: p_{j|i}, (N, N), 0 of itself.

    Args:
        x (Tensor): Points, (N, d).
        sigma (Tensor): Of each, (N,); twice a Gaussian's variance.
    """
    distance = euclidean(x, x).fill_diagonal_(torch.inf)
    # D_{2,c} instead of D_{2,0}: rows forget c, without which small scales
    # leave a row of zeros.
    near = distance.amin(1)**2
    return normalize_rows(
        exponential_inflation(metric_similarity(distance, 2, near), sigma))


def tsne(x: Tensor, sigma: Tensor) -> Tensor:
    """t-SNE's similarity of the data, p_ij, (N, N); see :func:`sne`.

    The printed row is damaged. As van der Maaten and Hinton (2008) have it,
    the rows are normalised too, as SNE's, before W / 2 + W^T / 2.
    """
    similarity = sne(x, sigma)
    return normalize_globally(similarity / 2 + similarity.T / 2)


def tsne_embedded(y: Tensor) -> Tensor:
    """t-SNE's similarity of the embedding, q_ij: D_{2,-1}, Γ_{-1} and N_g.

    Args:
        y (Tensor): Embedded points, (N, d).

    Returns:
        Tensor: (N, N), 0 of itself.
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
    target = torch.tensor(k, dtype=x.dtype).log2()
    sigma = solve_scales(
        lambda s: exponential_inflation(similarity, s).sum(1), target, x)
    w = exponential_inflation(similarity, sigma)
    return w + w.T - w * w.T


def umap_embedded(y: Tensor, a: float, b: float) -> Tensor:
    """UMAP's similarity of the embedding, 1 / (1 + a |y - y'|^{2b}).

    D_{2b,-1} of distances in units of a^{-1/2b}, then Γ_{-1}.

    Args:
        y (Tensor): Embedded points, (N, d).
        a (float): Positive.
        b (float): Positive.

    Returns:
        Tensor: (N, N).
    """
    distance = a**(0.5 / b) * euclidean(y, y)
    return inflation(metric_similarity(distance, 2 * b, -1.0), -1)


def perplexity_scales(x: Tensor, perplexity: float) -> Tensor:
    """Scales at which each row of :func:`sne` has that perplexity, (N,)."""

    def entropy(sigma: Tensor) -> Tensor:
        return torch.special.entr(sne(x, sigma)).sum(1)

    target = torch.tensor(perplexity, dtype=x.dtype).log()
    return solve_scales(entropy, target, x)


def solve_scales(ascending: Callable[[Tensor], Tensor], target: Tensor,
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
                         f'the target {float(target):g}: drop coinciding '
                         'points, or ask for another number of neighbours')
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
    kernel = normalize_two_sides(laplacian_eigenmaps(x, sigma))
    degree = kernel.sum(1)
    symmetric = kernel / (degree * degree[:, None]).sqrt()
    value, vector = torch.linalg.eigh(symmetric)
    vector = vector / (degree / degree.sum()).sqrt()[:, None]
    return (vector * value**time)[:, :-1].flip(1)
