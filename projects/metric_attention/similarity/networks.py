"""Networks on graphs as similarity computation, Section 2.2.4.

The formulas of our copy are lost; those of the methods' own papers decide.
"""

import torch
from torch import Tensor

from projects.metric_attention.similarity.operators import (
    inflation,
    normalize_two_sides,
)


def graph_convolution(adjacency: Tensor) -> Tensor:
    """Graph convolution's S: Γ_1/2 ∘ N_2 of A + I.

    Semi-Supervised Classification with Graph Convolutional Networks,
    https://arxiv.org/abs/1609.02907: D^(-1/2) (A + I) D^(-1/2), of which this
    is another form where A has entries 0 and 1.

    Args:
        adjacency (Tensor): A, symmetric, of 0 and 1, zero on its diagonal,
            (N, N).
    """
    loops = torch.eye(len(adjacency), dtype=adjacency.dtype)
    return inflation(normalize_two_sides(adjacency + loops), 0.5)


def diffusion(laplacian: Tensor, t: float) -> Tensor:
    """DiffusionNet's S: exp(-t L), heat diffusion for a learned time.

    DiffusionNet: Discretization Agnostic Learning on Surfaces,
    https://arxiv.org/abs/2012.00888.

    Args:
        laplacian (Tensor): L, positive semidefinite, (N, N).
        t (float): Time, not negative.
    """
    return torch.linalg.matrix_exp(-t * laplacian)
