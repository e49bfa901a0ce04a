"""Supervised learning as similarity computation, Section 2.2.3."""

import torch
from torch import Tensor

from projects.metric_attention.similarity.operators import (
    exponential_inflation,
    metric_similarity,
    normalize_columns,
    qk_dot_product,
)

from .manifold import euclidean


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


def gaussian_kernel(x: Tensor, y: Tensor, sigma: float) -> Tensor:
    """Kernel exp(-|x - y|² / σ): Γ°_σ of D_{2,0}, (N, M)."""
    return exponential_inflation(
        metric_similarity(euclidean(x, y), 2), sigma)


def linear_kernel(x: Tensor, y: Tensor) -> Tensor:
    """Kernel xᵀ y, a QK-dot product with Q = K = I, (N, M)."""
    eye = torch.eye(x.shape[-1], dtype=x.dtype)
    return qk_dot_product(x, y, eye, eye)


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
