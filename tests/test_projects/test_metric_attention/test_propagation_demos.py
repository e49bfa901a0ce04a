"""What the demonstrations show, against closed forms."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import ive

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope='module')
def demos():
    path = ROOT / 'projects' / 'metric_attention' / 'propagation_demos.py'
    spec = importlib.util.spec_from_file_location('propagation_demos', path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize('mode', [1, 2, 3])
@pytest.mark.parametrize('crowded', [False, True])
def test_limit(demos, mode, crowded):
    """The operator in divergence form, (p^2 u')' / p^2, by differences."""
    wave = demos.DENSITY_WAVE if crowded else 0.0
    angle = (demos.crowded_angles if crowded else demos.even_angles)(1500)
    h = 1e-3

    def squared_density(t):
        return (1 + wave * np.cos(t))**2

    def u(t):
        return np.cos(mode * t)

    flow = (squared_density(angle + h / 2) * (u(angle + h) - u(angle)) -
            squared_density(angle - h / 2) * (u(angle) - u(angle - h))) / h
    expected = flow / h / squared_density(angle)
    np.testing.assert_allclose(
        demos.exact_limit(angle, mode, wave), expected, atol=1e-4)
    got = demos.limit_on_circle(angle, mode, 1e-3)
    np.testing.assert_allclose(got, expected, atol=2e-3 * mode**4)


@pytest.mark.parametrize('scale', [1.0, 0.5, 2.0])
def test_scaled_metric_scales_the_rate(demos, scale):
    """Distances times c: the rate over c squared (Section 3.2)."""
    eps = 0.02
    z = 2 * scale**2 / eps
    amplitude = demos.decay(scale, eps, 20)
    np.testing.assert_allclose(
        amplitude, (ive(1, z) / ive(0, z))**np.arange(21), rtol=1e-9)
    rate = demos.decay_rate(amplitude)
    assert rate == pytest.approx(eps / 4 / scale**2, rel=0.05)
    assert rate == pytest.approx(
        demos.decay_rate(demos.decay(1.0, eps, 20)) / scale**2, rel=0.05)


def test_spectrum_of_the_circle(demos):
    """0, and twice the square of each whole number."""
    eps = 0.03
    points = demos.on_circle(demos.even_angles(300))
    k = np.array([0, 1, 1, 2, 2, 3, 3])
    expected = 4 / eps * (1 - ive(k, 2 / eps) / ive(0, 2 / eps))
    np.testing.assert_allclose(
        demos.spectrum(points, eps, 7), expected, atol=1e-8)


@pytest.mark.parametrize('clusters', [2, 3, 5])
def test_near_zero_eigenvalues_count_clusters(demos, clusters):
    points, cluster = demos.arcs(clusters, demos.GAP, 60)
    assert (np.bincount(cluster) == 60).all() and len(points) == 60 * clusters
    # The eigenvalues of the matrix as it stands, which is not symmetric.
    apart = torch.cdist(points, points).square().numpy()
    kernel = np.exp(-apart / demos.ARC_EPS)
    markov = kernel / kernel.sum(1, keepdims=True)
    exact = np.sort((1 - np.linalg.eigvals(markov).real) * 4 / demos.ARC_EPS)
    values = demos.spectrum(points, demos.ARC_EPS, 8)
    np.testing.assert_allclose(values, exact[:8], atol=1e-9)
    assert abs(values[0]) < 1e-9
    assert (values[1:clusters] > 1e-4).all()  # they do merge in the end
    assert (values[:clusters] < 0.05).all()
    assert (values[clusters:] > 1).all()


def test_connected_points_end_in_a_constant(demos):
    points = demos.on_circle(demos.even_angles(60))
    depths = np.array([0, 200, 2000])
    within, _ = demos.deep_propagation(
        points, np.zeros(60, dtype=int), 0.05, depths)
    assert within[0] > 0.5
    assert 1e-3 < within[1] < 0.5 * within[0]
    # The slowest wave decays like exp(-eps / 4 x depth).
    assert within[2] < 1e-9


def test_clusters_form_before_they_merge(demos):
    points, cluster = demos.arcs(3, demos.GAP, 40)
    depths = np.array([0, 300, 6000])
    within, between = demos.deep_propagation(
        points, cluster, demos.ARC_EPS, depths)
    assert within[0] > 0.5 and between[0] > 0.05
    assert within[1] < 0.01 * between[1] and between[1] > 0.9 * between[0]
    assert between[2] < 0.7 * between[0]


@pytest.mark.parametrize('eps', [0.05, 0.2, 1.0])
def test_general_pseudo_metric_takes_to_the_nearest_point(demos, eps):
    """Mean of the von Mises-Fisher distribution: coth k - 1 / k."""
    weight = demos.random_weight()
    seen = demos.nearest_on_sphere(weight, eps)
    k = seen['pull'] / eps
    length = 1 / torch.tanh(k) - 1 / k
    torch.testing.assert_close(
        seen['out'], length[:, None] * seen['nearest'], rtol=0, atol=2e-4)
    # The nearest point is the one of largest score.
    sphere = demos.on_sphere(5000)
    best = sphere[(demos.on_sphere(50) @ weight @ sphere.T).argmax(1)]
    assert (best - seen['nearest']).norm(dim=1).max() < 0.05


def test_limit_of_the_nearest_point(demos):
    errors = []
    for eps in (0.08, 0.04, 0.02):
        seen = demos.nearest_on_sphere(demos.random_weight(), eps)
        errors.append((seen['out'] - seen['nearest']).norm(dim=1).max())
    for before, after in zip(errors, errors[1:]):
        assert 1.9 < before / after < 2.1


def test_two_nearest_points_are_averaged(demos):
    angle = demos.even_angles(720)
    u = np.exp(np.cos(angle - 1))
    mean = (np.exp(np.cos(angle - 1)) + np.exp(-np.cos(angle - 1))) / 2
    errors = [
        np.abs(demos.two_nearest(angle, u, eps) - mean).max()
        for eps in (0.04, 0.02, 0.01)
    ]
    assert errors[-1] < 2e-3 < np.abs(u - mean).max()
    for before, after in zip(errors, errors[1:]):
        assert 1.9 < before / after < 2.1


def test_picture(demos, tmp_path, monkeypatch):
    out = tmp_path / 'new' / 'demos.png'
    monkeypatch.setattr(sys, 'argv', ['propagation_demos.py', '--out',
                                      str(out)])
    monkeypatch.setattr(
        demos, 'deep_propagation',
        lambda *args: (np.ones_like(args[-1]), np.ones_like(args[-1])))
    demos.main()
    assert out.read_bytes().startswith(b'\x89PNG')
