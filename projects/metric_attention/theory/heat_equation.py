r"""Theorem 4 on points drawn on a flat 3-torus.

.. math::
    \Delta_g u + 2 \langle \nabla p / p, \nabla u \rangle
    = f \Delta_{\bar g} u, \qquad f = p^{4 / (n - 2)}, \quad
    \bar g = e^{2 \varphi} g, \quad \varphi = \frac{2 \log p}{n - 2}

With n = 3, f = p^4 and lengths are multiplied by p². Either side is estimated
from points of its own by a propagation. On the left points of density p,
similar by their distance, as attention has it. On the right points that are
uniform in the volume of the new metric, p^6 of the old one, similar by the
new distance: heat diffusion. The new distance is p(x) p(y) times the old, up
to the fourth order of its square, which the limit does not see, and the
points' similarity a QK-dot product of seven features.

The torus is the product of three unit circles in R^6. The density depends on
one angle and the function on two, so that what both sides are at a finite
time scale, with infinitely many points, has a closed form or is one integral.
"""

import argparse

import numpy as np
import torch
from scipy.special import ive
from torch import Tensor

from mmstepnet.propagation import (
    dot_product_propagation,
    metric_propagation,
)

WAVE = 0.3
"""The density is 1 + 0.3 cos(t_1), not normalised: f Δ does not see it."""


def density(angle: np.ndarray) -> np.ndarray:
    """Density up to a factor, (N, 3) -> (N,)."""
    return 1 + WAVE * np.cos(angle[:, 0])


def wave(angle: np.ndarray) -> np.ndarray:
    """The function u = sin(t_1) + cos(t_2), (N, 3) -> (N,)."""
    return np.sin(angle[:, 0]) + np.cos(angle[:, 1])


def slope(angle: np.ndarray) -> np.ndarray:
    """Length of u's gradient in the old metric, (N, 3) -> (N,)."""
    return np.hypot(np.cos(angle[:, 0]), np.sin(angle[:, 1]))


def exact(angle: np.ndarray) -> np.ndarray:
    """Evaluate Δu + 2 (∇p / p) · ∇u, (N, 3) -> (N,)."""
    drift = -WAVE * np.sin(angle[:, 0]) / density(angle)
    return -wave(angle) + 2 * drift * np.cos(angle[:, 0])


def on_torus(angle: np.ndarray) -> Tensor:
    """Points of R^6, (N, 3) -> (N, 6)."""
    return torch.from_numpy(np.hstack([np.cos(angle), np.sin(angle)]))


def receivers(count: int) -> np.ndarray:
    """Points along a closed line, at which the sides are compared, (N, 3)."""
    turn = np.arange(count) * 2 * np.pi / count
    return np.stack([turn, 2 * turn + 1, np.zeros(count)], 1)


def draw_points(count: int, power: int, seed: int) -> np.ndarray:
    """Draw angles independently by a power of the density, (N, 3)."""
    rng = np.random.default_rng([seed, power])
    grid = np.linspace(0, 2 * np.pi, 4097)
    heights = density(grid[:, None])**power
    area = np.append(0, np.cumsum(heights[1:] + heights[:-1]))
    angle = rng.uniform(0, 2 * np.pi, (count, 3))
    angle[:, 0] = np.interp(rng.uniform(0, area[-1], count), area, grid)
    return angle


def drift_diffusion(at: np.ndarray, eps: float, count: int,
                    seed: int) -> np.ndarray:
    """Estimate the left side, attention's, on points drawn by the density.

    Args:
        at (ndarray): Where, angles (M, 3).
        eps (float): The paper's time scale.
        count (int): Number N of points drawn.
        seed (int): Of the points.

    Returns:
        ndarray: (M,).
    """
    points = draw_points(count, 1, seed)
    u = torch.from_numpy(wave(points))[:, None]
    x, y = on_torus(at), on_torus(points)
    seen = [metric_propagation(some, y, u, 2 * eps) for some in x.split(8)]
    return 2 / eps * (torch.cat(seen)[:, 0].numpy() - wave(at))


def heat_diffusion(at: np.ndarray, eps: float, count: int,
                   seed: int) -> np.ndarray:
    """Estimate the right side, f Δ of the new metric; as the left one.

    -p(x)² p(y)² |x - y|² / 2 = p(x)² p(y)² (x · y - 3), as |x|² = 3.
    """
    points = draw_points(count, 6, seed)
    u = torch.from_numpy(wave(points))[:, None]
    one = torch.ones(1, dtype=torch.float64)
    q, k = (
        torch.from_numpy(density(angle)**2)[:, None] *
        torch.cat([on_torus(angle), last.expand(len(angle), 1)], 1)
        for angle, last in ((at, one), (points, -3 * one)))
    seen = [dot_product_propagation(some / eps, k, u) for some in q.split(8)]
    change = torch.cat(seen)[:, 0].numpy() - wave(at)
    return density(at)**4 * 2 / eps * change


def drift_diffusion_limit(at: np.ndarray, eps: float) -> np.ndarray:
    """The left side for infinitely many points, in closed form, (M,)."""
    # A wave of m turns, seen through the kernel.
    one, two = (ive(m, 1 / eps) / ive(0, 1 / eps) for m in (1, 2))
    t, s = at[:, 0], at[:, 1]
    mean = (one * np.sin(t) + one * np.cos(s) + WAVE *
            (two * np.sin(2 * t) / 2 + one**2 * np.cos(t) * np.cos(s)))
    return 2 / eps * (mean / (1 + WAVE * one * np.cos(t)) - wave(at))


def heat_diffusion_limit(at: np.ndarray, eps: float,
                         nodes: int = 1024) -> np.ndarray:
    """The right side for infinitely many points, by one integral, (M,)."""
    t = np.arange(nodes) * 2 * np.pi / nodes
    height = 1 + WAVE * np.cos(t)
    sharp = (density(at)[:, None] * height)**2 / eps
    weight = height**6 * ive(0, sharp)**2 * np.exp(
        sharp * (np.cos(t - at[:, :1]) - 1))
    across = ive(1, sharp) / ive(0, sharp) * np.cos(at[:, 1:2])
    mean = (weight * (np.sin(t) + across)).sum(1) / weight.sum(1)
    return density(at)**4 * 2 / eps * (mean - wave(at))


def noise(at: np.ndarray, eps: float, count: int) -> tuple[np.ndarray, ...]:
    r"""Standard deviation of both sides over the draws of points.

    To leading order in the time scale, and with Theorem 1's powers:
    :math:`|\nabla u| N^{-1/2} \varepsilon^{-1/2 - 3/4} / (2 \pi^{3/4}
    \sqrt{p})`, the density p normalised and both in the side's own metric.

    Returns:
        tuple: Of the left side, and of the right one, (M,) both.
    """
    common = slope(at) / (2 * np.pi**0.75 * count**0.5 * eps**1.25)
    turn = np.arange(4096) * 2 * np.pi / 4096
    volume = (2 * np.pi)**3 * np.mean((1 + WAVE * np.cos(turn))**6)
    left = common * ((2 * np.pi)**3 / density(at))**0.5
    # f, times the gradient's length, which the new metric divides by p².
    return left, density(at)**2 * common * volume**0.5


def root_mean_square(error: np.ndarray) -> float:
    """Of all entries."""
    return float(np.sqrt(np.mean(np.square(error))))


def main() -> None:
    """Print both sides' errors: by sampling, by the time scale, and both."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.
        RawDescriptionHelpFormatter).parse_args()
    at, seeds = receivers(32), range(3)
    print('Root mean squares at 32 points over 3 draws; that of the operator '
          f'itself is {root_mean_square(exact(at)):.3f}.\n')
    print('| ε | N | side | of sampling | theory | of ε, N = ∞ | both '
          '|\n|---:|---:|---|---:|---:|---:|---:|')
    for eps in (0.4, 0.2, 0.1, 0.05):
        for count in (2**14, 2**16, 2**18):
            for name, side, limit, theory in zip(
                    ('attention', 'heat'), (drift_diffusion, heat_diffusion),
                    (drift_diffusion_limit, heat_diffusion_limit),
                    noise(at, eps, count)):
                got = np.stack([side(at, eps, count, s) for s in seeds])
                errors = (got - limit(at, eps), theory,
                          limit(at, eps) - exact(at), got - exact(at))
                print(f'| {eps:g} | {count} | {name} | ' + ' | '.join(
                    f'{root_mean_square(e):.3f}' for e in errors) + ' |')


if __name__ == '__main__':
    main()
