"""Section 3's theorems and examples, by propagation and by formula.

Time scales are the paper's, exp(-f / 2 ε): half of the propagation's eps.
"""

import numpy as np
import pytest
import torch
from scipy.special import ive
from torch.autograd.functional import jacobian
from torch.func import grad, hessian, jacfwd

from mmstepnet.propagation import (
    GraphAttention,
    L2Attention,
    dot_product_propagation,
    metric_propagation,
)
from projects.metric_attention.similarity import qk_dot_product
from projects.metric_attention.theory import heat_equation as heat
from projects.metric_attention.theory import lipschitz

MODES = np.arange(1, 4)
ARC_EPS = 0.015
CROWD, TENSION = 0.5, 0.8
"""Waves of a torus's density, and of its pseudo-metric's Hessian."""


def even(count):
    """Angles at equal distances, (N,)."""
    return np.arange(count) * 2 * np.pi / count


def crowded(share):
    """Angles of density (1 + cos(t) / 2) / 2 pi, from their quantiles."""
    turn = np.linspace(0, 2 * np.pi, 2**16 + 1)
    return np.interp(share, turn + np.sin(turn) / 2, turn)


def on_circle(angle):
    """Points of the unit circle, (N, 2)."""
    return torch.from_numpy(np.stack([np.cos(angle), np.sin(angle)], -1))


def limit_operator(x, u, eps):
    """At u of Theorem 2, by one propagation: 2 (S - I) u / ε."""
    return (metric_propagation(x, x, u, 2 * eps) - u) * (2 / eps)


def halves(errors, tolerance=0.1):
    return all(abs(before / after - 2) < tolerance
               for before, after in zip(errors, errors[1:]))


def with_drift(angle, wave):
    """u'' + 2 (log density)' u' of cos(kt), by hand, (N, K)."""
    drift = -2 * wave * np.sin(angle) / (1 + wave * np.cos(angle))
    phase = np.outer(angle, MODES)
    return (-MODES**2 * np.cos(phase)
            - drift[:, None] * MODES * np.sin(phase))


@pytest.mark.parametrize('wave', [0.0, 0.5])
def test_theorems_2_and_3(wave):
    """Diffusion, and drift towards where points are dense."""
    angle = crowded(even(1500)) if wave else even(1500)
    u = torch.from_numpy(np.cos(np.outer(angle, MODES)))
    exact = with_drift(angle, wave)
    errors = [np.abs(limit_operator(on_circle(angle), u, eps).numpy()
                     - exact).max() for eps in (2e-3, 1e-3, 5e-4)]
    assert errors[-1] < 2e-3 * np.abs(exact).max() and halves(errors)


def test_independent_draws():
    """The mean square of the error falls as 1 / N."""
    generator, squares = np.random.default_rng(0), []
    for count in (500, 4000):
        errors = []
        for _ in range(20):
            angle = crowded(generator.uniform(0, 2 * np.pi, count))
            u = torch.from_numpy(np.cos(angle))[:, None]
            got = limit_operator(on_circle(angle), u, 0.025)[:, 0].numpy()
            errors.append(np.square(got - with_drift(angle, 0.5)[:, 0]))
        squares.append(np.mean(errors))
    assert squares[1] < squares[0] / 4


@pytest.mark.parametrize('scale', [1.0, 0.5, 2.0])
def test_a_scaled_metric_scales_the_rate(scale):
    """Distances times c: the rate over c squared (Section 3.2)."""
    x = on_circle(even(600))
    u, eps = x[:, :1], 0.01
    got = limit_operator(scale * x, u, eps)
    z = scale**2 / eps
    eigenvalue = 2 / eps * (ive(1, z) / ive(0, z) - 1)
    torch.testing.assert_close(got, eigenvalue * u)
    assert eigenvalue == pytest.approx(-1 / scale**2, rel=0.05)


@pytest.mark.parametrize('clusters', [1, 2, 3, 5])
def test_near_zero_eigenvalues_count_clusters(clusters):
    """And propagation alone makes the clusters before it merges them."""
    length = 2 * np.pi / clusters - 0.4 * (clusters > 1)
    x = on_circle(np.concatenate([
        k * 2 * np.pi / clusters + np.linspace(0, length, 60)
        for k in range(clusters)]))
    s = metric_propagation(x, x, torch.eye(len(x)).double(), 2 * ARC_EPS)
    values = np.sort((1 - np.linalg.eigvals(s).real) * 2 / ARC_EPS)
    assert abs(values[0]) < 1e-9
    assert (values[1:clusters] > 1e-4).all()  # they do merge in the end
    assert (values[:clusters] < 0.05).all() and (values[clusters:] > 0.2).all()
    u = torch.randn(len(x), 4, dtype=torch.float64)
    member = torch.eye(clusters).double().repeat_interleave(60, 0)
    inside = torch.linalg.matrix_power(s, 3000) @ u
    mean = member.T @ inside / 60
    assert (inside - member @ mean).abs().max() < 0.05 * u.std()
    if clusters > 1:
        ended = torch.linalg.matrix_power(s, 10**6) @ u
        assert ended.std(0).max() < 1e-6 < mean.std(0).min()


SIDES = ((heat.drift_diffusion, heat.drift_diffusion_limit),
         (heat.heat_diffusion, heat.heat_diffusion_limit))


def divergence(flux, at, h=1e-4):
    """Of p^power times the gradient of u, by differences."""
    total = 0
    for half in h / 2 * np.eye(3):
        ends = [flux(at + sign * half) * sign
                * (heat.wave(at + 2 * sign * half) - heat.wave(at)) / h
                for sign in (1, -1)]
        total += (ends[0] - ends[1]) / h
    return total


def test_theorem_4_of_both_metrics():
    """(p² u')' / p², and f Δ of the metric p⁴ g with f = p⁴."""
    at = heat.receivers(20)
    p = heat.density(at)
    np.testing.assert_allclose(heat.exact(at), divergence(
        lambda t: heat.density(t)**2, at) / p**2, atol=1e-6)
    # sqrt(det) = p^6, and the inverse metric p^-4.
    np.testing.assert_allclose(heat.exact(at), p**4 * divergence(
        lambda t: heat.density(t)**(6 - 4), at) / p**6, atol=1e-6)


@pytest.mark.parametrize('side', [0, 1])
def test_theorem_4_by_propagation(side):
    """Errors of ε by the closed form, and of sampling by Theorem 1."""
    compute, limit = SIDES[side]
    at = heat.receivers(32)
    errors = [heat.root_mean_square(limit(at, eps) - heat.exact(at))
              for eps in (0.002, 0.001, 0.0005)]
    assert errors[-1] < 0.001 and halves(errors)
    for eps, count in ((0.2, 4096), (0.2, 16384), (0.1, 16384)):
        got = heat.root_mean_square([
            compute(at, eps, count, seed) - limit(at, eps)
            for seed in range(4)])
        wanted = heat.root_mean_square(heat.noise(at, eps, count)[side])
        assert got == pytest.approx(wanted, rel=0.25)


@pytest.mark.parametrize('side, eps, power', [(0, 0.3, 1), (1, 0.5, 6)])
def test_theorem_4_in_closed_form(side, eps, power):
    """The same integral by a sum over a grid."""
    at, turn = heat.receivers(7), even(40)
    grid = np.stack(np.meshgrid(turn, turn, turn), -1).reshape(-1, 3)
    apart = np.square(np.asarray(heat.on_torus(at))[:, None] -
                      np.asarray(heat.on_torus(grid))).sum(-1)
    p, q = heat.density(at)[:, None], heat.density(grid)
    if side:
        apart = apart * (p * q)**2  # the distance of the new metric
    kernel = np.exp(-apart / (2 * eps)) * q**power
    change = kernel @ heat.wave(grid) / kernel.sum(1) - heat.wave(at)
    np.testing.assert_allclose(
        SIDES[side][1](at, eps),
        (p[:, 0]**4 if side else 1) * 2 / eps * change, atol=1e-7)


def test_distance_of_the_new_metric():
    """p(x) p(y) |x - y| against the length of the line between them."""
    x, errors = heat.receivers(9), []
    for step in (0.04, 0.02):
        y = x + step * np.array([0.6, 0.64, 0.48])
        line = x + (y - x) * np.linspace(0, 1, 2001)[:, None, None]
        lengths = np.linalg.norm(np.diff(line, axis=0), axis=-1)
        middle = heat.density(((line[1:] + line[:-1]) / 2).reshape(
            -1, 3)).reshape(lengths.shape)**2
        near = heat.density(x) * heat.density(y) * step
        errors.append(np.abs(near**2 - (middle * lengths).sum(0)**2).max())
    assert 12 < errors[0] / errors[1] < 20  # the fourth order


def test_heat_capacity_is_the_inverse_of_f():
    """Appendix B: heat c T is kept, of c = 1 / f and the new volume.

    On the circle n = 1: f = p^-4, and lengths are multiplied by p^-2.
    """
    angle = even(64)
    p = (1 + 0.5 * np.cos(angle))[:, None]
    change = with_drift(angle, 0.5)
    np.testing.assert_allclose((p**-2 * p**4 * change).mean(0), 0, atol=1e-12)
    assert (np.abs((p**-2 * p**-4 * change).mean(0)) > 0.01).all()


def test_heads_are_a_sum_of_equations():
    """Section 3.3: each head has its metric, on a circle of radius r_k.

    Coordinates of the circle are eigenfunctions, of eigenvalue -1 / r_k².
    """
    radii, eps = (1.0, 0.5), 2e-3
    x = on_circle(even(2000))
    points = torch.cat([x, x], 1)
    block = L2Attention(4, num_heads=2, eps=2 * eps, bias=False).double()
    value, merge = torch.randn(2, 4, 4).double()
    with torch.no_grad():
        block.pseudo_metric.metric.weight.copy_(torch.diag(torch.tensor(
            [radii[0]] * 2 + [radii[1]] * 2)))
        block.value.weight.copy_(value)
        block.proj.weight.copy_(merge)
        got = block(points)
    heads = [merge[:, part] @ value[part] for part in (slice(2), slice(2, 4))]
    change = (got - points @ sum(heads).T) * 2 / eps
    wanted = sum(-points @ head.T / r**2 for head, r in zip(heads, radii))
    torch.testing.assert_close(change, wanted, rtol=0.01, atol=0.02)


WEIGHT = torch.eye(3).double() + 0.4 * torch.randn(
    3, 3, generator=torch.Generator().manual_seed(0)).double()
"""Neither symmetric nor near singular."""


def on_sphere(count):
    """Fibonacci's even points on the unit sphere, (N, 3)."""
    height = 1 - (2 * np.arange(count) + 1) / count
    angle = np.pi * (1 + 5**0.5) * (np.arange(count) + 0.5)
    flat = torch.from_numpy(np.sqrt(1 - height**2))[:, None]
    return torch.cat([flat * on_circle(angle),
                      torch.from_numpy(height)[:, None]], 1)


@pytest.mark.parametrize('eps', [0.025, 0.1, 0.5])
def test_dot_products_take_to_the_nearest_point(eps):
    """Mean of the von Mises-Fisher distribution: coth k - 1 / k."""
    towards, y = on_sphere(50) @ WEIGHT, on_sphere(20000)
    out = dot_product_propagation(towards / (2 * eps), y, y)
    pull = towards.norm(dim=1, keepdim=True)
    k = pull / (2 * eps)
    torch.testing.assert_close(
        out, (1 / torch.tanh(k) - 1 / k) * towards / pull, rtol=0, atol=2e-4)


def test_two_nearest_points_are_averaged():
    """By a pseudo-metric that cannot tell opposite points apart."""
    angle = even(720)
    u, doubled = np.exp(np.cos(angle - 1)), on_circle(2 * angle)
    mean = (u + np.roll(u, 360)) / 2
    errors = [np.abs(metric_propagation(
        doubled, doubled, torch.from_numpy(u)[:, None], 2 * eps)[:, 0].numpy()
        - mean).max() for eps in (0.02, 0.01, 0.005)]
    assert errors[-1] < 2e-3 < np.abs(u - mean).max() and halves(errors)


def test_example_1_is_a_metric_on_the_ellipsoid():
    x = torch.linalg.solve(WEIGHT, on_sphere(4000).T).T
    seen = x @ WEIGHT.T  # on the unit sphere
    f = -qk_dot_product(x, x, WEIGHT, WEIGHT)
    torch.testing.assert_close(
        f, torch.cdist(seen, seen, compute_mode='donot_use_mm_for_euclid_dist'
                       ).square() / 2 - 1)
    # Coordinates on the sphere are eigenfunctions, of eigenvalue -2.
    eps = 0.01
    change = 2 / eps * (dot_product_propagation(
        seen, seen, seen, eps) - seen)
    torch.testing.assert_close(change, -2 * seen, rtol=0, atol=0.1)


def test_example_2_is_no_metric():
    module = GraphAttention(4, activation='tanh').double()
    x = torch.randn(20, 4, dtype=torch.float64)
    with torch.no_grad():
        module.source.copy_(module.receiver)
        odd = module(x)
        module.source.neg_()
        f = module(x)
    torch.testing.assert_close(odd, -odd.mT)
    torch.testing.assert_close(f, f.mT)
    assert (f[0].argmin(1) == f[0].argmin(1)[0]).all()  # for all points


@pytest.mark.parametrize('dims', [2, 3, 5])
def test_example_3(dims):
    """-Q^T K = P^T diag(a) P: coordinates -a_i x'_i / |a x'|, by search."""
    axes = torch.linalg.qr(torch.randn(dims, dims).double()).Q
    weight = torch.randn(dims).double()
    x, y = (torch.nn.functional.normalize(torch.randn(count, dims).double())
            for count in (10, 20000))
    turned = x @ axes.T
    nearest = torch.nn.functional.normalize(-weight * turned) @ axes

    def f(y):
        return (turned * weight * (y @ axes.T)).sum(-1)

    assert (f(nearest) <= f(y[:, None]).amin(0) + 1e-12).all()
    if dims == 2:
        y = on_circle(even(4000))
        query = -turned * weight @ axes
        errors = [float((dot_product_propagation(query / (2 * eps), y, y)
                         - nearest).norm(dim=1).max())
                  for eps in (0.002, 0.001, 0.0005)]
        assert errors[-1] < 0.05 and halves(errors, 0.3)


NEAREST = torch.tensor([0.4, -0.3], dtype=torch.float64)


def f(y):
    """No metric: its third derivatives do not vanish at its minimum."""
    v = [a - b for a, b in zip(y, NEAREST)]
    return (v[0]**2 + 0.8 * v[1]**2 + 0.5 * v[0] * v[1] + 0.3 * v[0]**3
            - 0.2 * v[0] * v[1]**2 + 0.4 * v[0]**4 + 0.3 * v[1]**4)


def log_density(y):
    return 0.7 * y[0] - 0.4 * y[1] + 0.2 * torch.cos(y[0] + y[1])


def h(y):
    return torch.sin(1.3 * y[0]) * torch.exp(0.5 * y[1])


def first_order(f, log_density, h, nearest):
    """Theorem 5's operator at a nearest point y*, C the Hessian of f there.

    C⁻¹_ij ∂_i ∂_j h + C⁻¹_ij ∂_i h (2 ∂_j log p - C⁻¹_kl ∂_j ∂_k ∂_l f), in
    coordinates in which the metric is flat to second order. The last term is
    that of a metric's absence: |x - y|² has none. This is Laplace's method,
    worked out by us: the formula is lost in our copy.
    """
    inverse = torch.linalg.inv(hessian(f)(nearest))
    third = jacfwd(hessian(f))(nearest)
    pull = (2 * grad(log_density)(nearest)
            - torch.einsum('jkl,kl->j', third, inverse))
    return ((inverse * hessian(h)(nearest)).sum()
            + grad(h)(nearest) @ inverse @ pull)


def test_theorem_5_to_first_order():
    """Against means over exp(-f / 2 ε) p on a grid."""
    side = torch.linspace(-1.5, 1.5, 1201, dtype=torch.float64)
    y = NEAREST[:, None, None] + torch.stack(
        torch.meshgrid(side, side, indexing='ij'))
    wanted = first_order(f, log_density, h, NEAREST)
    errors = []
    for eps in (8e-3, 4e-3, 2e-3):
        weight = torch.exp(-f(y) / (2 * eps) + log_density(y))
        mean = (weight * h(y)).sum() / weight.sum()
        errors.append(abs((mean - h(NEAREST)) / eps - wanted).item())
    assert errors[-1] < 0.01 < abs(wanted) and halves(errors, 0.2)
    # Without the term of the third derivatives it is another limit.
    flat = first_order(lambda y: f(y) - 0.3 * (y - NEAREST)[0]**3,
                       log_density, h, NEAREST)
    assert abs(flat - wanted) > 10 * errors[-1]


def test_theorem_5_of_a_metric_is_theorem_2():
    """For |x - y|² it is half of Δ h + 2 ∇ log p · ∇ h, of ε as 2 ε."""
    got = first_order(lambda y: (y - NEAREST).square().sum(), log_density, h,
                      NEAREST)
    a, b = NEAREST.tolist()
    wave = -0.2 * np.sin(a + b)
    rise = 1.3 * np.cos(1.3 * a) * np.exp(0.5 * b), 0.5 * h(NEAREST).item()
    laplace = (0.25 - 1.69) * h(NEAREST).item()
    drift = rise[0] * (0.7 + wave) + rise[1] * (wave - 0.4)
    assert got.item() == pytest.approx(laplace / 2 + drift)


def test_theorem_6_to_first_order():
    """On a torus whose nearest points are circles.

    f(x, y) = 2 w(t₂(y)) (1 - cos(t₁(y) - t₁(x))) is 0 on the circle of the
    same t₁, and its Hessian across is 2 w. The density is (1 + cos(t₁) / 2)
    (1 + cos(t₂) / 2), and cos(t₂ - t₁) is sent. The limit is a mean by p m₀,
    where m₀ goes as 1 / √w. To first order in ε each nearest point changes
    as in Theorem 5, and its share: the mass across is p m₀ (1 + ε b).
    """
    turn, angle = even(4096), even(12)
    w = 1 + TENSION * np.cos(turn - 1)
    sent = np.cos(turn - angle[:, None])
    rise = np.sin(turn - angle[:, None])
    height = 1 + CROWD * np.cos(turn)
    share = height * w**-0.5 / (height * w**-0.5).sum()
    limit = sent @ share
    at = (1 + CROWD * np.cos(angle))[:, None]
    slope, bend = (-CROWD * t[:, None] / at
                   for t in (np.sin(angle), np.cos(angle)))
    # 1/4 is of the fourth derivative of f, which is -2 w.
    b = (1 / 4 + bend) / (2 * w)
    change = ((2 * rise * slope - sent) / (2 * w) + b * sent) @ share
    change -= (b @ share) * limit
    # By propagation: -f / 2 ε = w (x · y - 1) / ε, a dot product of three.
    t, s = (crowded(2 * np.pi * (np.arange(n) + 0.5) / n)
            for n in (1600, 200))
    t, s = np.repeat(t, 200), np.tile(s, 1600)
    key = torch.from_numpy(1 + TENSION * np.cos(s - 1))[:, None] * torch.cat(
        [on_circle(t), -torch.ones(len(t), 1).double()], 1)
    query = torch.cat([on_circle(angle), torch.ones(12, 1).double()], 1)
    value = torch.from_numpy(np.cos(s - t))[:, None]
    outs = [dot_product_propagation(query, key, value, eps)[:, 0].numpy()
            for eps in (0.02, 0.01, 0.005)]
    errors = [np.abs(out - limit).max() for out in outs]
    assert errors[-1] < 0.01 and halves(errors)
    firsts = [np.abs((out - limit) / eps - change).max()
              for out, eps in zip(outs, (0.02, 0.01, 0.005))]
    assert firsts[-1] < 0.02 < np.abs(change).max() and halves(firsts, 0.2)
    by_density = sent @ (height / height.sum())  # without m₀
    assert np.abs(by_density - limit).max() > 0.2


def test_derivative_of_dot_products_is_the_points_covariance():
    x = np.random.default_rng(0).standard_normal((9, 3))
    x[0] = 0
    found = jacobian(lipschitz.PROPAGATIONS['dot product'],
                     torch.from_numpy(x))[0, :, 0]
    np.testing.assert_allclose(
        found, np.cov(x.T, bias=True) + np.eye(3) / 9, atol=1e-12)


def test_only_the_dot_products_constant_is_unbounded(monkeypatch):
    monkeypatch.setattr(lipschitz, 'DRAWS', 3)
    norms = {name: [lipschitz.largest_norm(propagate, scale)
                    for scale in (1.0, 10.0, 100.0)]
             for name, propagate in lipschitz.PROPAGATIONS.items()}
    # As the square of the scale.
    assert 50 < norms['dot product'][2] / norms['dot product'][1] < 200
    assert max(norms['L2'] + norms['metric']) < 4
