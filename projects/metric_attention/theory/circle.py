"""Propagation by distances of points on a circle.

The attention limit operator (Theorems 2 and 3), the rate that a scaled metric
gives (Section 3.2), the clustering of deep pure propagation and the spectrum
that foretells it (Stationary function). Time scales here and in the modules
beside are the paper's, exp(-|x - y|² / 2 ε): half of the propagation's eps.
"""

import numpy as np
import torch
from scipy.linalg import eigvalsh
from torch import Tensor

from mmstepnet.propagation import (
    attention_limit_operator,
    metric_propagation,
)

DENSITY_WAVE = 0.5
"""Points on the circle have the density (1 + cos(t) / 2) / 2 pi."""


GAP, ARC_EPS = 0.4, 0.015
"""Angle between arcs, and a time scale to which it is far but not endless."""


def even_angles(count: int) -> np.ndarray:
    """Angles at equal distances, (N,)."""
    return np.arange(count) * 2 * np.pi / count


def crowded_angles(count: int) -> np.ndarray:
    """Evenly spaced quantiles of the density of ``DENSITY_WAVE``, (N,)."""
    quantile = angle = even_angles(count)
    for _ in range(50):  # Newton's method
        angle = angle - (
            angle + DENSITY_WAVE * np.sin(angle) -
            quantile) / (1 + DENSITY_WAVE * np.cos(angle))
    return angle


def on_circle(angle: np.ndarray) -> Tensor:
    """Points of the unit circle, (N, 2)."""
    return torch.from_numpy(np.stack([np.cos(angle), np.sin(angle)], -1))


def limit_on_circle(angle: np.ndarray, mode: int, eps: float) -> np.ndarray:
    """The limit operator's estimate for cos(mode t), (N,)."""
    u = torch.from_numpy(np.cos(mode * angle))
    return attention_limit_operator(on_circle(angle), u[:, None],
                                    eps)[:, 0].numpy()


def exact_limit(angle: np.ndarray, mode: int, wave: float) -> np.ndarray:
    """Evaluate u'' + 2 (log density)' u' for u = cos(mode t), (N,)."""
    drift = -2 * wave * np.sin(angle) / (1 + wave * np.cos(angle))
    return (-mode**2 * np.cos(mode * angle) -
            drift * mode * np.sin(mode * angle))


def decay(scale: float, eps: float, steps: int,
          count: int = 400) -> np.ndarray:
    """Amplitude of cos(t) after each propagation, distances times scale.

    Returns:
        ndarray: (steps + 1,), from 1.
    """
    points = scale * on_circle(even_angles(count))
    start = u = points[:, :1] / scale
    amplitude = [1.0]
    for _ in range(steps):
        u = metric_propagation(points, points, u, 2 * eps)
        amplitude.append(float((u * start).mean() / start.square().mean()))
    return np.array(amplitude)


def arcs(clusters: int, gap: float, count: int) -> tuple[Tensor, np.ndarray]:
    """Points on equal arcs of a circle, with gaps between them.

    Args:
        clusters (int): Number of arcs.
        gap (float): Angle between two of them.
        count (int): Points on each.

    Returns:
        tuple: Points (N, 2), and the number of the arc of each, (N,).
    """
    length = 2 * np.pi / clusters - gap
    angle = np.concatenate([
        k * 2 * np.pi / clusters + np.linspace(0, length, count)
        for k in range(clusters)
    ])
    return on_circle(angle), np.repeat(np.arange(clusters), count)


def spectrum(points: Tensor, eps: float, most: int) -> np.ndarray:
    """Smallest eigenvalues of minus the limit operator's estimate.

    S is the kernel over its row sums, and so similar to a symmetric matrix.

    Args:
        points (Tensor): (N, d).
        eps (float): Time scale.
        most (int): How many.

    Returns:
        ndarray: Ascending, (most,); the first is 0.
    """
    eye = torch.eye(len(points), dtype=points.dtype)
    similarity = metric_propagation(points, points, eye, 2 * eps).numpy()
    # sqrt(S_ij S_ji) is the symmetric one: the row sums cancel.
    symmetric = np.sqrt(similarity * similarity.T)
    last = len(points) - 1
    values = eigvalsh(symmetric, subset_by_index=[last - most + 1, last])
    return (1 - values[::-1]) * 2 / eps


def deep_propagation(points: Tensor, cluster: np.ndarray, eps: float,
                     depths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Propagate random features, and nothing else, many times.

    Args:
        points (Tensor): (N, d); they stay, as the paper assumes.
        cluster (ndarray): Cluster of each, (N,).
        eps (float): Time scale.
        depths (ndarray): Numbers of propagations, ascending, (D,).

    Returns:
        tuple: Standard deviation of the features within the clusters and of
        the clusters' means, at each depth, (D,) both.
    """
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(len(points), 16, generator=generator, dtype=points.dtype)
    member = torch.nn.functional.one_hot(torch.from_numpy(cluster))
    member = member.to(u.dtype)
    within, between, depth = [], [], 0
    for wanted in depths:
        for _ in range(depth, wanted):
            u = metric_propagation(points, points, u, 2 * eps)
        depth = wanted
        mean = (member.T @ u) / member.sum(0)[:, None]
        within.append(float((u - member @ mean).std()))
        between.append(float((mean - mean.mean(0)).square().mean().sqrt()))
    return np.array(within), np.array(between)
