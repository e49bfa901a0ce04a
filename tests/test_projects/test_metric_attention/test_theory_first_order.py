"""First orders in ε, and what follows from them, by quadrature."""

import numpy as np
import pytest
import torch

from mmstepnet.propagation import L2Attention
from projects.metric_attention.theory import pseudo_metrics
from projects.metric_attention.theory.circle import (
    even_angles,
    exact_limit,
    on_circle,
)

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


def propagated(eps, reach=1.5, count=1201):
    """H_new at x: means over exp(-f / 2 ε) p on a grid."""
    side = torch.linspace(-reach, reach, count, dtype=torch.float64)
    y = NEAREST[:, None, None] + torch.stack(
        torch.meshgrid(side, side, indexing='ij'))
    weight = torch.exp(-f(y) / (2 * eps) + log_density(y))
    return (weight * h(y)).sum() / weight.sum()


def halves(errors):
    return all(1.8 < before / after < 2.2
               for before, after in zip(errors, errors[1:]))


def test_theorem_5_to_first_order():
    wanted = pseudo_metrics.first_order(f, log_density, h, NEAREST)
    errors = [
        abs((propagated(eps) - h(NEAREST)) / eps - wanted).item()
        for eps in (8e-3, 4e-3, 2e-3)]
    assert errors[-1] < 0.01 < abs(wanted) and halves(errors)
    # Without the term of the third derivatives it is another limit.
    flat = pseudo_metrics.first_order(
        lambda y: f(y) - 0.3 * (y - NEAREST)[0]**3, log_density, h, NEAREST)
    assert abs(flat - wanted) > 10 * errors[-1]


def test_theorem_5_of_a_metric_is_theorem_2():
    """For |x - y|² it is half of Δ h + 2 ∇ log p · ∇ h, of ε as 2 ε."""
    got = pseudo_metrics.first_order(
        lambda y: (y - NEAREST).square().sum(), log_density, h, NEAREST)
    a, b = NEAREST.tolist()
    wave = -0.2 * np.sin(a + b)
    rise = 1.3 * np.cos(1.3 * a) * np.exp(0.5 * b), 0.5 * h(NEAREST).item()
    laplace = (0.25 - 1.69) * h(NEAREST).item()
    drift = rise[0] * (0.7 + wave) + rise[1] * (wave - 0.4)
    assert got.item() == pytest.approx(laplace / 2 + drift)


def test_theorem_5_on_the_sphere():
    """Positions of von Mises and Fisher: coth k - 1 / k, k = pull / 2 ε."""
    pull = 1.7
    got = pseudo_metrics.first_order(
        lambda v: -pull * torch.cos(v.square().sum().sqrt()),
        # The chart's own density is flat to second order, as p is.
        lambda v: torch.zeros_like(v[0]),
        lambda v: torch.cos(v.square().sum().sqrt()),
        torch.full((2, ), 1e-4, dtype=torch.float64))
    eps = 1e-3
    k = pull / (2 * eps)
    assert got.item() == pytest.approx((1 / np.tanh(k) - 1 / k - 1) / eps,
                                       rel=1e-3)


def test_theorem_6_to_first_order():
    angle = even_angles(12)
    limit = pseudo_metrics.nearest_circle_limit(angle)
    wanted = pseudo_metrics.nearest_circle_change(angle)
    errors = [
        np.abs((pseudo_metrics.nearest_circle_exact(angle, eps) - limit) / eps
               - wanted).max() for eps in (0.02, 0.01, 0.005)]
    assert errors[-1] < 0.02 < np.abs(wanted).max() and halves(errors)


def test_heads_are_a_sum_of_equations():
    """Section 3.3: each head has its metric, on a circle of radius r_k.

    Coordinates of the circle are eigenfunctions, of eigenvalue -1 / r_k².
    """
    radii, eps = (1.0, 0.5), 2e-3
    x = on_circle(even_angles(2000))
    points = torch.cat([x, x], 1)
    block = L2Attention(4, num_heads=2, eps=2 * eps, bias=False).double()
    generator = torch.Generator().manual_seed(0)
    value, merge = torch.randn(2, 4, 4, generator=generator).double()
    with torch.no_grad():
        block.pseudo_metric.metric.weight.copy_(torch.diag(torch.tensor(
            [radii[0]] * 2 + [radii[1]] * 2)))
        block.value.weight.copy_(value)
        block.proj.weight.copy_(merge)
        got = block(points)
    heads = [merge[:, part] @ value[part] for part in (slice(2), slice(2, 4))]
    change = (got - points @ sum(heads).T) * 2 / eps
    wanted = sum(-points @ head.T / r**2 for head, r in zip(heads, radii))
    torch.testing.assert_close(change, wanted, rtol=0.01, atol=0.01)


def test_heat_capacity_is_the_inverse_of_f():
    """Appendix B: heat c T is kept, of c = 1 / f and the new volume.

    On the circle n = 1: f = p^-4, and lengths are multiplied by p^-2.
    """
    angle, wave = even_angles(64), 0.5
    p = 1 + wave * np.cos(angle)
    f, volume = p**-4, p**-2
    for mode in (1, 2, 3):
        change = exact_limit(angle, mode, wave)
        assert (volume / f * change).mean() == pytest.approx(0, abs=1e-12)
        assert abs((volume * f * change).mean()) > 0.01
