"""What propagation by similarity does, shown on points of known geometry.

Six short demonstrations of Section 3 of "Towards understanding how attention
mechanism works in deep learning", https://arxiv.org/abs/2412.18288: the
attention limit operator on a circle (Theorems 2 and 3), the rate that a
scaled metric gives (Section 3.2), the clustering of deep pure propagation and
the spectrum that foretells it (Stationary function), and a general
pseudo-metric, which takes a point to its nearest points (Theorem 5, Example
3). All run in float64, through the same functions as the attention modules.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from matplotlib import rc_context
from matplotlib.axes import Axes
from scipy.linalg import eigvalsh
from torch import Tensor

from mmstepnet.figures.style import (
    COLORS,
    PAPER_STYLE,
    paper_figure,
)
from mmstepnet.propagation import (
    attention_limit_operator,
    dot_product_propagation,
    metric_propagation,
)

DENSITY_WAVE = 0.5
"""Points on the circle have the density (1 + cos(t) / 2) / 2 pi."""


GAP, ARC_EPS = 0.4, 0.03
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
    """The limit operator's estimate for cos(mode t), (N,).

    Here and below ``eps`` divides squared distances and dot products: it is
    twice the paper's.
    """
    u = torch.from_numpy(np.cos(mode * angle))
    return attention_limit_operator(on_circle(angle), u[:, None],
                                    eps / 2)[:, 0].numpy()


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
        u = metric_propagation(points, points, u, eps)
        amplitude.append(float((u * start).mean() / start.square().mean()))
    return np.array(amplitude)


def decay_rate(amplitude: np.ndarray) -> float:
    """Of what decays like exp(-rate x step)."""
    return -float(np.log(amplitude[-1])) / (len(amplitude) - 1)


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
    similarity = metric_propagation(points, points, eye, eps).numpy()
    # sqrt(S_ij S_ji) is the symmetric one: the row sums cancel.
    symmetric = np.sqrt(similarity * similarity.T)
    last = len(points) - 1
    values = eigvalsh(symmetric, subset_by_index=[last - most + 1, last])
    return (1 - values[::-1]) * 4 / eps


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
            u = metric_propagation(points, points, u, eps)
        depth = wanted
        mean = (member.T @ u) / member.sum(0)[:, None]
        within.append(float((u - member @ mean).std()))
        between.append(float((mean - mean.mean(0)).square().mean().sqrt()))
    return np.array(within), np.array(between)


def on_sphere(count: int) -> Tensor:
    """Fibonacci's even points on the unit sphere, (N, 3)."""
    index = np.arange(count) + 0.5
    height = 1 - 2 * index / count
    angle = np.pi * (1 + 5**0.5) * index
    radius = np.sqrt(1 - height**2)
    return torch.from_numpy(
        np.stack([radius * np.cos(angle), radius * np.sin(angle), height],
                 -1))


def nearest_on_sphere(weight: Tensor, eps: float, receivers: int = 50,
                      sources: int = 20000) -> dict[str, Tensor]:
    """Propagate positions on the sphere by dot products (Example 3).

    The pseudo-metric -x . W y has one nearest point, W^T x / |W^T x|.

    Args:
        weight (Tensor): W, (3, 3), not singular.
        eps (float): Time scale, to which the dot products are divided.
        receivers (int): Points x. Defaults to 50.
        sources (int): Points y, whose positions are sent. Defaults to 20000.

    Returns:
        dict: ``out`` and ``nearest`` point, (receivers, 3), and ``pull``,
        |W^T x|, (receivers,).
    """
    x, y = on_sphere(receivers), on_sphere(sources)
    wanted = x @ weight
    out = dot_product_propagation(wanted, y, y, eps)
    pull = wanted.norm(dim=1)
    return dict(out=out, nearest=wanted / pull[:, None], pull=pull)


def two_nearest(angle: np.ndarray, u: np.ndarray, eps: float) -> np.ndarray:
    """Propagate by a pseudo-metric that cannot tell opposite points apart.

    Args:
        angle (ndarray): Points on the circle, (N,).
        u (ndarray): Values at them, (N,).
        eps (float): Time scale.

    Returns:
        ndarray: (N,).
    """
    doubled = on_circle(2 * angle)
    sent = torch.from_numpy(u)[:, None]
    return metric_propagation(doubled, doubled, sent, eps)[:, 0].numpy()


def draw(path: Path) -> None:
    """Draw the six."""
    figure, axes = paper_figure(3, 2, width=3.3, height=2.6)
    panels = (draw_limit, draw_scaling, draw_spectrum, draw_clustering,
              draw_nearest, draw_two_nearest)
    # The ticks of logarithmic axes are mathematics.
    with rc_context({**PAPER_STYLE, 'text.parse_math': True}):
        for panel, ax in zip(panels, axes):
            panel(ax)
            ax.legend(loc='best')
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=100)


def draw_limit(ax: Axes) -> None:
    for angles, wave, color, name in (
            (even_angles, 0.0, COLORS[0], 'even'),
            (crowded_angles, DENSITY_WAVE, COLORS[1], 'dense at 0')):
        angle = angles(1500)
        ax.plot(angle, exact_limit(angle, 2, wave), color=color,
                label=f"u'' + 2 (log ρ)' u', {name}")
        got = limit_on_circle(angle, 2, 1e-3)
        some = slice(None, None, 75)
        ax.plot(angle[some], got[some], '.', color=color)
    ax.plot([], [], 'k.', label='4 (S - I) u / ε, ε = 0.001')
    ax.set(title='Limit operator of u = cos 2t', xlabel='t',
           ylim=(None, 10))


def draw_scaling(ax: Axes) -> None:
    eps = 0.05
    for scale, color in zip((1.0, 2**-0.5, 0.5), COLORS):
        amplitude = decay(scale, eps, 60)
        steps = np.arange(len(amplitude))
        ax.plot(steps, np.exp(-eps / 4 / scale**2 * steps), color=color,
                label=f'× {scale:.2g}: exp(-ε t / {4 * scale**2:.2g})')
        ax.plot(steps[::6], amplitude[::6], '.', color=color)
    ax.set(title='Scaled distances scale the rate', xlabel='propagations t',
           ylabel='amplitude of cos', ylim=(0, 1.05))


def draw_spectrum(ax: Axes) -> None:
    for clusters, color in zip((1, 2, 3, 5), COLORS):
        points = (arcs(clusters, GAP, 60)[0] if clusters > 1 else
                  on_circle(even_angles(300)))
        values = spectrum(points, ARC_EPS, 9)
        ax.plot(np.arange(1, 10), np.sqrt(np.maximum(values, 0)), 'o-',
                color=color, markersize=3,
                label=f'{clusters} arcs' if clusters > 1 else 'whole circle')
    ax.set(title='One eigenvalue near 0 a cluster', xlabel='index',
           ylabel='root of eigenvalue')


def draw_clustering(ax: Axes) -> None:
    depths = np.unique(np.geomspace(1, 2e4, 40).astype(int))
    points, cluster = arcs(3, GAP, 60)
    for values, color, name in zip(
            deep_propagation(points, cluster, ARC_EPS, depths), COLORS,
            ('within clusters', 'between clusters')):
        ax.loglog(depths, values, color=color, label=name)
    ax.set(title='Random features on 3 arcs', xlabel='propagations',
           ylabel='standard deviation')


def draw_nearest(ax: Axes) -> None:
    weight = random_weight()
    scales = np.geomspace(0.01, 1, 9)
    errors, theory = [], []
    for eps in scales:
        seen = nearest_on_sphere(weight, eps)
        errors.append((seen['out'] - seen['nearest']).norm(dim=1).mean())
        theory.append((eps / seen['pull']).mean())
    ax.loglog(scales, theory, color=COLORS[0], label='ε / |Wᵀx|')
    ax.loglog(scales, errors, '.', color=COLORS[1],
              label='|S y - nearest|')
    ax.set(title='Dot products: nearest is Wᵀx / |Wᵀx|', xlabel='ε')


def draw_two_nearest(ax: Axes) -> None:
    angle = even_angles(720)
    u = np.exp(np.cos(angle - 1))
    ax.plot(angle, u, color=COLORS[2], label='u')
    ax.plot(angle, (u + np.roll(u, 360)) / 2, color=COLORS[0],
            label='mean at t, t + π')
    got = two_nearest(angle, u, 1e-2)
    ax.plot(angle[::30], got[::30], '.', color=COLORS[1], label='S u')
    ax.set(title='Two nearest points, and their mean', xlabel='t')


def random_weight() -> Tensor:
    """A fixed W, (3, 3), neither symmetric nor near singular."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(3, 3, generator=generator, dtype=torch.float64)
    return torch.eye(3, dtype=torch.float64) + 0.4 * noise


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        '--out', type=Path, default=Path('propagation.png'),
        help='picture. Default: propagation.png')
    args = parser.parse_args()
    draw(args.out)
    print(f'picture: {args.out}')


if __name__ == '__main__':
    main()
