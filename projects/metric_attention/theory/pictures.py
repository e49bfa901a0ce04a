"""Pictures of the theory, each panel beside its closed form."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter

from projects.drawing import (
    COLORS,
    HEAT,
    PAPER_STYLE,
    paper_figure,
)

from . import heat_equation as heat
from .circle import (
    ARC_EPS,
    DENSITY_WAVE,
    GAP,
    arcs,
    crowded_angles,
    decay,
    deep_propagation,
    even_angles,
    exact_limit,
    limit_on_circle,
    on_circle,
    spectrum,
)
from .pseudo_metrics import (
    graph_attention_metric,
    nearest_by_axes,
    nearest_circle,
    nearest_circle_exact,
    nearest_circle_limit,
    nearest_on_circle,
    nearest_on_sphere,
    on_ellipsoid,
    random_weight,
    self_attention_metric,
    torus_grid,
    turned_axes,
    two_nearest,
)

SIDES = (
    (heat.drift_diffusion, heat.drift_diffusion_limit, COLORS[0],
     'attention'),
    (heat.heat_diffusion, heat.heat_diffusion_limit, COLORS[1],
     'f × heat, new metric'))
"""Of Theorem 4: by sampling, for infinitely many points, colour and name."""


def draw(path: Path, panels: list[Callable[[Axes], None]]) -> None:
    """Draw panels, three in a row."""
    figure, axes = paper_figure(3, len(panels) // 3, width=3.3, height=2.6)
    # The ticks of logarithmic axes are mathematics.
    with rc_context({**PAPER_STYLE, 'text.parse_math': True}):
        for panel, ax in zip(panels, axes):
            panel(ax)
            if ax.get_legend_handles_labels()[0]:
                ax.legend(loc='best')
            for axis in (ax.xaxis, ax.yaxis):
                axis.set_minor_formatter(NullFormatter())
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=100)


def draw_limit(ax: Axes) -> None:
    for angles, wave, color, name in (
            (even_angles, 0.0, COLORS[0], 'even'),
            (crowded_angles, DENSITY_WAVE, COLORS[1], 'dense at 0')):
        angle = angles(1500)
        ax.plot(angle, exact_limit(angle, 2, wave), color=color,
                label=f"u'' + 2 (log ρ)' u', {name}")
        got = limit_on_circle(angle, 2, 5e-4)
        some = slice(None, None, 75)
        ax.plot(angle[some], got[some], '.', color=color)
    ax.plot([], [], 'k.', label='2 (S - I) u / ε, ε = 0.0005')
    ax.set(title='Limit operator of u = cos 2t', xlabel='t',
           ylim=(None, 10))


def draw_scaling(ax: Axes) -> None:
    eps = 0.025
    for scale, color in zip((1.0, 2**-0.5, 0.5), COLORS):
        amplitude = decay(scale, eps, 60)
        steps = np.arange(len(amplitude))
        ax.plot(steps, np.exp(-eps / 2 / scale**2 * steps), color=color,
                label=f'× {scale:.2g}: exp(-ε t / {2 * scale**2:.2g})')
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
    scales = np.geomspace(0.005, 0.5, 9)
    errors, theory = [], []
    for eps in scales:
        seen = nearest_on_sphere(weight, eps)
        errors.append((seen['out'] - seen['nearest']).norm(dim=1).mean())
        theory.append((2 * eps / seen['pull']).mean())
    ax.loglog(scales, theory, color=COLORS[0], label='2 ε / |Wᵀx|')
    ax.loglog(scales, errors, '.', color=COLORS[1],
              label='|S y - nearest|')
    ax.set(title='Dot products: nearest is Wᵀx / |Wᵀx|', xlabel='ε')


def draw_two_nearest(ax: Axes) -> None:
    angle = even_angles(720)
    u = np.exp(np.cos(angle - 1))
    ax.plot(angle, u, color=COLORS[2], label='u')
    ax.plot(angle, (u + np.roll(u, 360)) / 2, color=COLORS[0],
            label='mean at t, t + π')
    got = two_nearest(angle, u, 5e-3)
    ax.plot(angle[::30], got[::30], '.', color=COLORS[1], label='S u')
    ax.set(title='Two nearest points, and their mean', xlabel='t')


def draw_two_sides(ax: Axes) -> None:
    eps, count = 0.1, 2**20
    line = heat.receivers(200)
    turn = line[:, 0]
    ax.plot(turn, heat.exact(line), color='k', linewidth=0.8,
            label='Δu + 2 ∇p/p · ∇u')
    at = heat.receivers(32)
    for side, limit, color, name in SIDES:
        ax.plot(turn, limit(line, eps), color=color, linewidth=0.8)
        ax.plot(at[:, 0], side(at, eps, count, 0), '.', color=color,
                label=name)
    ax.set(title='Theorem 4, ε = 0.1, 1,048,576 points', xlabel='t',
           ylim=(None, 4))


def draw_error_of_count(ax: Axes) -> None:
    eps, at = 0.1, heat.receivers(32)
    counts = 4**np.arange(6, 10)
    for side, (compute, limit, color, name) in enumerate(SIDES):
        exact = limit(at, eps)
        errors = [heat.root_mean_square(np.stack([
            compute(at, eps, int(n), seed) - exact for seed in range(3)
        ])) for n in counts]
        theory = [heat.root_mean_square(heat.noise(at, eps, n)[side])
                  for n in counts]
        ax.loglog(counts, theory, color=color)
        ax.loglog(counts, errors, '.', color=color, label=name)
    ax.plot([], [], 'k', label='theory, ∝ N^(-1/2)')
    ax.set(title='Error of sampling, ε = 0.1', xlabel='N')


def draw_error_of_eps(ax: Axes) -> None:
    count, at = 2**18, heat.receivers(32)
    fine, scales = (np.geomspace(0.02, 0.6, n) for n in (25, 7))
    exact = heat.exact(at)
    for side, (compute, limit, color, name) in enumerate(SIDES):
        bias = np.array([heat.root_mean_square(limit(at, eps) - exact)
                         for eps in fine])
        spread = np.array([heat.root_mean_square(
            heat.noise(at, eps, count)[side]) for eps in fine])
        ax.loglog(fine, np.hypot(bias, spread), color=color)
        ax.loglog(fine, bias, color=color, linestyle='--', linewidth=0.8)
        ax.loglog(scales, [heat.root_mean_square(
            compute(at, eps, count, 0) - exact) for eps in scales], '.',
                  color=color, label=name)
    ax.plot([], [], 'k', label='theory')
    ax.plot([], [], 'k--', linewidth=0.8, label='of ε alone, N = ∞')
    ax.set(title='Error of both, 262,144 points', xlabel='ε', xlim=(0.01, 1))


def draw_example_1(ax: Axes) -> None:
    query = random_weight()
    x = on_ellipsoid(query, 40)
    f = self_attention_metric(x, query).flatten()
    ax.plot([0, 4], [-1, 1], color=COLORS[1], linewidth=4,
            label='f = |Qx - Qy|² / 2 - 1')
    for points, color, name in ((x, COLORS[8], '|x - y|²'),
                                (x @ query.T, COLORS[0], '|Qx - Qy|²')):
        ax.plot(torch.cdist(points, points).square().flatten(), f, '.',
                color=color, markersize=2, label=name)
    ax.set(title='Example 1: f on the ellipsoid |Qx| = 1',
           xlabel='squared distance', xlim=(-0.2, 12))


def draw_example_2(ax: Axes) -> None:
    generator = torch.Generator().manual_seed(1)
    first, other = torch.randn(2, 3, generator=generator,
                               dtype=torch.float64)
    x = on_ellipsoid(random_weight(), 25)
    for second, color, name in ((other, COLORS[8], 'α₂ of its own'),
                                (first, COLORS[1], 'α₂ = α₁'),
                                (-first, COLORS[0], 'α₂ = -α₁')):
        f = graph_attention_metric(x, first, second, random_weight())
        ax.plot(f.flatten(), f.T.flatten(), '.', color=color, markersize=2,
                label=name)
    ax.set(title='Example 2: graph attention, σ = tanh', xlabel='f(x, y)',
           ylabel='f(y, x)', ylim=(None, 2))


def draw_example_3(ax: Axes) -> None:
    angle = even_angles(400)
    exact = nearest_by_axes(on_circle(angle), *turned_axes())
    got = nearest_on_circle(angle[::20], 0.01)
    for k in range(2):
        ax.plot(angle, exact[:, k], color=COLORS[k],
                label=f'nearest point, coordinate {k + 1}')
        ax.plot(angle[::20], got[:, k], '.', color=COLORS[k])
    ax.plot([], [], 'k.', label='S y, ε = 0.01')
    ax.set(title='Example 3: -a x′ / |a x′|', xlabel='angle of x',
           ylim=(None, 2.4))


def draw_nearest_circle(ax: Axes) -> None:
    first, second, eps = 120, 40, 0.02
    points = torus_grid(first, second)
    row = nearest_circle(np.array([2.0]), eps, first, second, values=False)
    t, s = points.reshape(first, second, 2).transpose(2, 0, 1)
    ax.pcolormesh(s, t, row.reshape(first, second), cmap=HEAT,
                  shading='nearest', rasterized=True)
    ax.axhline(2.0, color='w', linewidth=0.6, linestyle='--')
    ax.set(title='Theorem 6: S(x, y) on a torus, x at t₁ = 2',
           xlabel='t₂ of y', ylabel='t₁ of y', ylim=(0.8, 3.2))
    ax.grid(False)


def draw_theorem_6(ax: Axes) -> None:
    angle = even_angles(200)
    ax.plot(angle, nearest_circle_limit(angle), color=COLORS[0],
            label='mean over A_x by p m₀')
    ax.plot(angle, nearest_circle_limit(angle, weighted=False), '--',
            color=COLORS[8], linewidth=0.8, label='by p alone')
    ax.plot(angle[::10], nearest_circle(angle[::10], 0.01), '.',
            color=COLORS[1], label='S H, ε = 0.01')
    ax.set(title='Theorem 6: H_new, H_old = cos(t₂ - t₁)',
           xlabel='t₁ of x', ylim=(None, 0.6))


def draw_error_of_theorem_6(ax: Axes) -> None:
    angle, scales = even_angles(32), np.geomspace(0.002, 0.3, 9)
    limit = nearest_circle_limit(angle)
    fine = np.geomspace(0.002, 0.3, 50)
    ax.loglog(fine, [heat.root_mean_square(
        nearest_circle_exact(angle, eps) - limit) for eps in fine],
              color=COLORS[0], label='by one integral, N = ∞')
    ax.loglog(scales, [heat.root_mean_square(
        nearest_circle(angle, eps).numpy() - limit) for eps in scales], '.',
              color=COLORS[1], label='S H, 1,000 × 100 points')
    last = heat.root_mean_square(nearest_circle_exact(angle, 0.002) - limit)
    ax.loglog(fine, last * fine / 0.002, 'k--', linewidth=0.8, label='∝ ε')
    ax.set(title='Theorem 6: distance from the mean', xlabel='ε')


PICTURES = {
    'propagation': [draw_limit, draw_scaling, draw_spectrum, draw_clustering,
                    draw_nearest, draw_two_nearest],
    'heat_equation': [draw_two_sides, draw_error_of_count,
                      draw_error_of_eps],
    'pseudo_metrics': [draw_example_1, draw_example_2, draw_example_3,
                       draw_nearest_circle, draw_theorem_6,
                       draw_error_of_theorem_6],
}
"""Panels of each picture."""
