"""Clustering as similarity computation and propagation, Section 2.2.2."""

import torch
from torch import Tensor

from projects.metric_attention.similarity.operators import (
    adjacency_similarity,
    inflation,
    metric_similarity,
    normalize_columns,
    normalize_rows,
)

from .manifold import euclidean

NEAREST = 1e-150
"""Distance that coinciding points have here, so that 0 is not divided by."""


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

    Raises:
        ValueError: All points are infinitely further from a centre than
            from another, near the limit.
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
    h = weights
    for _ in range(steps):
        s = normalize_rows(inflation(adjacency_similarity(h, 2), 2))
        h = s @ torch.eye(len(h), dtype=h.dtype)
    return h
