"""Section 3's theorems and examples, by propagation and by formula.

Time scales are the paper's, exp(-f / 2 ε): half of the propagation's eps.
"""

import numpy as np
import pytest
import torch
from scipy.special import ive

from mmstepnet.propagation import (
    DotProduct,
    GraphAttention,
    L2Attention,
    dot_product_propagation,
    metric_propagation,
)

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
    return all(
        abs(before / after - 2) < tolerance
        for before, after in zip(errors, errors[1:])
    )


def with_drift(angle, wave):
    """u'' + 2 (log density)' u' of cos(kt), by hand, (N, K)."""
    drift = -2 * wave * np.sin(angle) / (1 + wave * np.cos(angle))
    phase = np.outer(angle, MODES)
    return -(MODES**2) * np.cos(phase) - drift[:, None] * MODES * np.sin(phase)


@pytest.mark.parametrize('wave', [0.0, 0.5])
def test_theorems_2_and_3(wave):
    """Diffusion, and drift towards where points are dense."""
    angle = crowded(even(1500)) if wave else even(1500)
    u = torch.from_numpy(np.cos(np.outer(angle, MODES)))
    exact = with_drift(angle, wave)
    errors = [
        np.abs(limit_operator(on_circle(angle), u, eps).numpy() - exact).max()
        for eps in (2e-3, 1e-3, 5e-4)
    ]
    assert errors[-1] < 2e-3 * np.abs(exact).max() and halves(errors)


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
    x = on_circle(
        np.concatenate(
            [
                k * 2 * np.pi / clusters + np.linspace(0, length, 60)
                for k in range(clusters)
            ]
        )
    )
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
        block.pseudo_metric.metric.weight.copy_(
            torch.diag(torch.tensor([radii[0]] * 2 + [radii[1]] * 2))
        )
        block.value.weight.copy_(value)
        block.proj.weight.copy_(merge)
        got = block(points)
    heads = [merge[:, part] @ value[part] for part in (slice(2), slice(2, 4))]
    change = (got - points @ sum(heads).T) * 2 / eps
    wanted = sum(-points @ head.T / r**2 for head, r in zip(heads, radii))
    torch.testing.assert_close(change, wanted, rtol=0.01, atol=0.02)


WEIGHT = (
    torch.eye(3).double()
    + 0.4
    * torch.randn(3, 3, generator=torch.Generator().manual_seed(0)).double()
)
"""Neither symmetric nor near singular."""


def on_sphere(count):
    """Fibonacci's even points on the unit sphere, (N, 3)."""
    height = 1 - (2 * np.arange(count) + 1) / count
    angle = np.pi * (1 + 5**0.5) * (np.arange(count) + 0.5)
    flat = torch.from_numpy(np.sqrt(1 - height**2))[:, None]
    return torch.cat(
        [flat * on_circle(angle), torch.from_numpy(height)[:, None]], 1
    )


@pytest.mark.parametrize('eps', [0.025, 0.1, 0.5])
def test_dot_products_take_to_the_nearest_point(eps):
    """Mean of the von Mises-Fisher distribution: coth k - 1 / k."""
    towards, y = on_sphere(50) @ WEIGHT, on_sphere(20000)
    out = dot_product_propagation(towards / (2 * eps), y, y)
    pull = towards.norm(dim=1, keepdim=True)
    k = pull / (2 * eps)
    torch.testing.assert_close(
        out, (1 / torch.tanh(k) - 1 / k) * towards / pull, rtol=0, atol=2e-4
    )


def test_example_1_is_a_metric_on_the_ellipsoid():
    x = torch.linalg.solve(WEIGHT, on_sphere(4000).T).T
    seen = x @ WEIGHT.T  # on the unit sphere
    module = DotProduct(3).double()
    with torch.no_grad():
        module.query.weight.copy_(WEIGHT)
        module.key.weight.copy_(WEIGHT)
        (f,) = module(x)
    torch.testing.assert_close(
        f,
        torch.cdist(
            seen, seen, compute_mode='donot_use_mm_for_euclid_dist'
        ).square()
        / 2
        - 1,
    )
    # Coordinates on the sphere are eigenfunctions, of eigenvalue -2.
    eps = 0.01
    change = 2 / eps * (dot_product_propagation(seen, seen, seen, eps) - seen)
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


def test_theorem_6():
    """On a torus whose nearest points are circles.

    f(x, y) = 2 w(t₂(y)) (1 - cos(t₁(y) - t₁(x))) is 0 on the circle of the
    same t₁, and its Hessian across is 2 w. The density is (1 + cos(t₁) / 2)
    (1 + cos(t₂) / 2), and cos(t₂ - t₁) is sent. The limit is a mean by p m₀,
    where m₀ goes as 1 / √w.
    """
    turn, angle = even(4096), even(12)
    w = 1 + TENSION * np.cos(turn - 1)
    sent = np.cos(turn - angle[:, None])
    height = 1 + CROWD * np.cos(turn)
    limit = sent @ (height * w**-0.5 / (height * w**-0.5).sum())
    # By propagation: -f / 2 ε = w (x · y - 1) / ε, a dot product of three.
    t, s = (crowded(2 * np.pi * (np.arange(n) + 0.5) / n) for n in (1600, 200))
    t, s = np.repeat(t, 200), np.tile(s, 1600)
    key = torch.from_numpy(1 + TENSION * np.cos(s - 1))[:, None] * torch.cat(
        [on_circle(t), -torch.ones(len(t), 1).double()], 1
    )
    query = torch.cat([on_circle(angle), torch.ones(12, 1).double()], 1)
    value = torch.from_numpy(np.cos(s - t))[:, None]
    errors = [
        np.abs(
            dot_product_propagation(query, key, value, eps)[:, 0].numpy()
            - limit
        ).max()
        for eps in (0.02, 0.01, 0.005)
    ]
    assert errors[-1] < 0.01 and halves(errors)
    by_density = sent @ (height / height.sum())  # without m₀
    assert np.abs(by_density - limit).max() > 0.2
