"""Theorem 4's two sides, and the pictures of the theory."""

import numpy as np
import pytest
import torch

from projects.metric_attention.theory import __main__ as theory
from projects.metric_attention.theory import heat_equation as heat
from projects.metric_attention.theory import pictures
from tests.programs import call_tool

SIDES = ((heat.drift_diffusion, heat.drift_diffusion_limit),
         (heat.heat_diffusion, heat.heat_diffusion_limit))


def test_exact():
    """The operator in divergence form, (p^2 u')' / p^2, by differences."""
    at, h = heat.receivers(20), 1e-4

    def squared(angle):
        return heat.density(angle)**2

    total = 0
    for axis in range(3):
        half = h / 2 * np.eye(3)[axis]
        ahead = (heat.wave(at + 2 * half) - heat.wave(at)) / h
        behind = (heat.wave(at) - heat.wave(at - 2 * half)) / h
        total += (squared(at + half) * ahead -
                  squared(at - half) * behind) / h
    np.testing.assert_allclose(heat.exact(at), total / squared(at), atol=1e-6)


def test_new_metric_by_differences():
    """f Δ of the metric p^4 g, f = p^4: sqrt(det) = p^6, inverse p^-4."""
    at, h = heat.receivers(20), 1e-4
    total = 0
    for axis in range(3):
        half = h / 2 * np.eye(3)[axis]
        flux = [heat.density(at + sign * half)**(6 - 4) * sign *
                (heat.wave(at + 2 * sign * half) - heat.wave(at)) / h
                for sign in (1, -1)]
        total += (flux[0] - flux[1]) / h
    laplacian = total / heat.density(at)**6
    np.testing.assert_allclose(
        heat.density(at)**4 * laplacian, heat.exact(at), atol=1e-6)


@pytest.mark.parametrize('limit', [limit for _, limit in SIDES])
def test_error_falls_with_eps(limit):
    at = heat.receivers(32)
    errors = [heat.root_mean_square(limit(at, eps) - heat.exact(at))
              for eps in (0.002, 0.001, 0.0005)]
    assert errors[-1] < 0.001
    for before, after in zip(errors, errors[1:]):
        assert 1.9 < before / after < 2.1


def grid(count):
    """Equal distances along all three angles, (N, 3)."""
    turn = np.arange(count) * 2 * np.pi / count
    return np.stack(np.meshgrid(turn, turn, turn), -1).reshape(-1, 3)


def test_closed_form_of_the_left_side():
    """The same integral by a sum over a grid."""
    at, eps = heat.receivers(7), 0.3
    points = grid(24)
    apart = np.square(np.asarray(heat.on_torus(at))[:, None] -
                      np.asarray(heat.on_torus(points))).sum(-1)
    kernel = np.exp(-apart / (2 * eps)) * heat.density(points)
    mean = kernel @ heat.wave(points) / kernel.sum(1)
    np.testing.assert_allclose(
        heat.drift_diffusion_limit(at, eps), 2 / eps *
        (mean - heat.wave(at)), atol=1e-9)


def test_integral_of_the_right_side():
    at, eps = heat.receivers(7), 0.5
    points = grid(40)
    apart = np.square(np.asarray(heat.on_torus(at))[:, None] -
                      np.asarray(heat.on_torus(points))).sum(-1)
    scale = (heat.density(at)[:, None] * heat.density(points))**2
    kernel = np.exp(-scale * apart / (2 * eps)) * heat.density(points)**6
    mean = kernel @ heat.wave(points) / kernel.sum(1)
    np.testing.assert_allclose(
        heat.heat_diffusion_limit(at, eps), heat.density(at)**4 * 2 / eps *
        (mean - heat.wave(at)), atol=1e-7)


def test_distance_of_the_new_metric():
    """p(x) p(y) |x - y| against the length of the line between them."""
    x = heat.receivers(9)
    errors = []
    for step in (0.04, 0.02):
        y = x + step * np.array([0.6, 0.64, 0.48])
        line = x + (y - x) * np.linspace(0, 1, 2001)[:, None, None]
        lengths = np.linalg.norm(np.diff(line, axis=0), axis=-1)
        middle = np.stack([heat.density(p)**2
                           for p in (line[1:] + line[:-1]) / 2])
        length = (middle * lengths).sum(0)
        near = heat.density(x) * heat.density(y) * step
        errors.append(np.abs(near**2 - length**2).max())
    assert 12 < errors[0] / errors[1] < 20  # the fourth order


def test_dot_product_is_the_new_distance():
    at, seed, eps = heat.receivers(5), 3, 0.4
    points = heat.draw_points(500, 6, seed)
    x, y = heat.on_torus(at), heat.on_torus(points)
    scale = torch.from_numpy(
        heat.density(at)[:, None]**2 * heat.density(points)**2)
    kernel = (-scale * torch.cdist(x, y).square() / (2 * eps)).softmax(1)
    mean = (kernel @ torch.from_numpy(heat.wave(points))).numpy()
    np.testing.assert_allclose(
        heat.heat_diffusion(at, eps, 500, seed), heat.density(at)**4 * 2 /
        eps * (mean - heat.wave(at)), atol=1e-9)


@pytest.mark.parametrize('power', [1, 6])
def test_drawn_points_have_their_density(power):
    angle = heat.draw_points(200000, power, 0)
    turn = np.arange(512) * 2 * np.pi / 512
    weight = (1 + heat.WAVE * np.cos(turn))**power
    for m in (1, 2):
        wanted = weight @ np.cos(m * turn) / weight.sum()
        assert np.cos(m * angle[:, 0]).mean() == pytest.approx(
            wanted, abs=0.006)
        assert np.abs(np.exp(1j * m * angle).mean(0).imag).max() < 0.006
        assert np.abs(np.cos(m * angle[:, 1:]).mean(0)).max() < 0.006


@pytest.mark.parametrize('side', [0, 1])
def test_noise_is_that_of_the_theory(side):
    """In size, and so as N^-1/2 and eps^(-1/2 - 3/4)."""
    at = heat.receivers(32)
    compute, limit = SIDES[side]
    for eps, count in ((0.2, 4096), (0.2, 16384), (0.1, 16384)):
        got = heat.root_mean_square([
            compute(at, eps, count, seed) - limit(at, eps)
            for seed in range(4)
        ])
        wanted = heat.root_mean_square(heat.noise(at, eps, count)[side])
        assert got == pytest.approx(wanted, rel=0.25)


def test_both_sides_agree():
    at, eps, count = heat.receivers(16), 0.2, 2**17
    left, right = (compute(at, eps, count, 0) for compute, _ in SIDES)
    wanted = heat.exact(at)
    # They see the drift, and so are not the Laplacian of the old metric.
    drift = heat.root_mean_square(wanted + heat.wave(at))
    assert heat.root_mean_square(left - wanted) < 0.7 * drift
    assert heat.root_mean_square(right - wanted) < 0.7 * drift


@pytest.mark.parametrize('name', ['propagation', 'pseudo_metrics'])
def test_pictures(name, tmp_path, monkeypatch):
    out = tmp_path / 'new'
    monkeypatch.setattr(
        pictures, 'deep_propagation',
        lambda *args: (np.ones_like(args[-1]), np.ones_like(args[-1])))
    small = pictures.nearest_circle
    monkeypatch.setattr(
        pictures, 'nearest_circle', lambda angle, eps, first=50, second=20,
        values=True: small(angle, eps, first, second, values))
    call_tool(theory, name, '--out', out)
    path = out / f'{name}.png'
    assert path.read_bytes().startswith(b'\x89PNG')


def test_picture_of_the_heat_equation(tmp_path, monkeypatch):
    for side in ('drift_diffusion', 'heat_diffusion'):
        compute = getattr(heat, side)
        monkeypatch.setattr(
            heat, side, lambda at, eps, count, seed, compute=compute: compute(
                at, eps, 1000, seed))
    pictures.draw(tmp_path / 'x.png', pictures.PICTURES['heat_equation'])
    assert (tmp_path / 'x.png').read_bytes().startswith(b'\x89PNG')
