import numpy as np
import pytest
import torch
from scipy.special import ive

from mmstepnet.propagation import attention_limit_operator

MODES = np.arange(5)


def circle(angle, radius=1.0):
    points = np.stack([np.cos(angle), np.sin(angle)], -1) * radius
    return torch.from_numpy(points)


def harmonics(angle):
    """cos kt and sin kt, (N, 2 K)."""
    phase = np.outer(angle, MODES)
    return torch.from_numpy(np.hstack([np.cos(phase), np.sin(phase)]))


def even(n):
    return np.arange(n) * 2 * np.pi / n


def crowded(n):
    """Angles of density (1 + cos(t) / 2) / 2 pi: evenly spaced quantiles."""
    share, angle = even(n), even(n)
    for _ in range(50):  # Newton's method on t + sin(t) / 2 = share
        angle = angle - (angle + np.sin(angle) / 2 - share) / (
            1 + np.cos(angle) / 2)
    return angle


def with_drift(angle):
    """u'' + 2 (log density)' u' of the harmonics, by hand."""
    drift = 2 * -np.sin(angle) / 2 / (1 + np.cos(angle) / 2)
    phase = np.outer(angle, MODES)
    cos, sin = np.cos(phase), np.sin(phase)
    return torch.from_numpy(
        np.hstack([
            -MODES**2 * cos - drift[:, None] * MODES * sin,
            -MODES**2 * sin + drift[:, None] * MODES * cos
        ]))


@pytest.mark.parametrize('radius', [1.0, 0.3])
@pytest.mark.parametrize('eps', [0.05, 0.005])
def test_exact_on_the_circle(radius, eps):
    """Harmonics are eigenfunctions, with ratios of Bessel functions.

    Of exp(-|x - y|^2 / (2 eps)), the paper's heat kernel.
    """
    angle = even(600)
    u = harmonics(angle)
    z = 1 / eps
    eigenvalue = 2 / (eps * radius**2) * (ive(MODES, z) / ive(0, z) - 1)
    expected = u * torch.from_numpy(np.tile(eigenvalue, 2))
    got = attention_limit_operator(circle(angle, radius), u, eps * radius**2)
    assert (got - expected).abs().max() < 1e-9 * (1 + expected.abs().max())


@pytest.mark.parametrize('angles', [even, crowded])
def test_limit(angles):
    """Laplace-Beltrami operator and drift, the error halved with eps."""
    angle = angles(1500)
    u = harmonics(angle)
    exact = (
        u * torch.from_numpy(-np.tile(MODES, 2)**2.0)
        if angles is even else with_drift(angle))
    errors = [
        (attention_limit_operator(circle(angle), u, eps) - exact).abs().max()
        for eps in (2e-3, 1e-3, 5e-4)
    ]
    assert errors[-1] < 2e-3 * exact.abs().max()
    for before, after in zip(errors, errors[1:]):
        assert 1.9 < before / after < 2.1


def test_random_points():
    """Independent draws: the mean over nodes of the error falls as 1/n."""
    generator = np.random.default_rng(0)
    squares = []
    for n in (500, 4000):
        draws = np.interp(
            generator.uniform(0, 2 * np.pi, (20, n)),
            np.append(even(4096), 2 * np.pi),
            np.append(crowded(4096), 2 * np.pi))
        errors = []
        for angle in draws:
            u = harmonics(angle)[:, 1:3]
            exact = with_drift(angle)[:, 1:3]
            got = attention_limit_operator(circle(angle), u, 0.025)
            errors.append((got - exact).square().mean())
        squares.append(np.mean(errors))
    assert squares[1] < squares[0] / 4


def test_batches_and_scaling():
    angle = even(64)
    u = harmonics(angle)
    points = torch.stack([circle(angle), 2 * circle(angle)])
    both = attention_limit_operator(points, u.expand(2, -1, -1), 0.5)
    torch.testing.assert_close(
        both[1], attention_limit_operator(points[0], u, 0.125) / 4)


def test_bad_input():
    with pytest.raises(ValueError, match='eps'):
        attention_limit_operator(torch.ones(3, 2), torch.ones(3, 1), 0.0)
    with pytest.raises(ValueError, match='do not fit'):
        attention_limit_operator(torch.ones(3, 2), torch.ones(4, 1), 1.0)
