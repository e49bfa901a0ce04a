"""What propagation on a circle shows, against closed forms."""

import numpy as np
import pytest
import torch
from scipy.special import ive

from projects.metric_attention.theory import circle


@pytest.mark.parametrize('mode', [1, 2, 3])
@pytest.mark.parametrize('crowded', [False, True])
def test_limit(mode, crowded):
    """The operator in divergence form, (p^2 u')' / p^2, by differences."""
    wave = circle.DENSITY_WAVE if crowded else 0.0
    angle = (circle.crowded_angles if crowded else circle.even_angles)(1500)
    h = 1e-3

    def squared_density(t):
        return (1 + wave * np.cos(t))**2

    def u(t):
        return np.cos(mode * t)

    flow = (squared_density(angle + h / 2) * (u(angle + h) - u(angle)) -
            squared_density(angle - h / 2) * (u(angle) - u(angle - h))) / h
    expected = flow / h / squared_density(angle)
    np.testing.assert_allclose(
        circle.exact_limit(angle, mode, wave), expected, atol=1e-4)
    got = circle.limit_on_circle(angle, mode, 5e-4)
    np.testing.assert_allclose(got, expected, atol=2e-3 * mode**4)


@pytest.mark.parametrize('scale', [1.0, 0.5, 2.0])
def test_scaled_metric_scales_the_rate(scale):
    """Distances times c: the rate over c squared (Section 3.2)."""
    eps = 0.01
    z = scale**2 / eps
    amplitude = circle.decay(scale, eps, 20)
    np.testing.assert_allclose(
        amplitude, (ive(1, z) / ive(0, z))**np.arange(21), rtol=1e-9)
    rate = -np.log(amplitude[-1]) / 20
    assert rate == pytest.approx(eps / 2 / scale**2, rel=0.05)
    unscaled = -np.log(circle.decay(1.0, eps, 20)[-1]) / 20
    assert rate == pytest.approx(unscaled / scale**2, rel=0.05)


def test_spectrum_of_the_circle():
    """0, and twice the square of each whole number."""
    eps = 0.015
    points = circle.on_circle(circle.even_angles(300))
    k = np.array([0, 1, 1, 2, 2, 3, 3])
    expected = 2 / eps * (1 - ive(k, 1 / eps) / ive(0, 1 / eps))
    np.testing.assert_allclose(
        circle.spectrum(points, eps, 7), expected, atol=1e-8)


@pytest.mark.parametrize('clusters', [2, 3, 5])
def test_near_zero_eigenvalues_count_clusters(clusters):
    points, cluster = circle.arcs(clusters, circle.GAP, 60)
    assert (np.bincount(cluster) == 60).all() and len(points) == 60 * clusters
    # The eigenvalues of the matrix as it stands, which is not symmetric.
    apart = torch.cdist(points, points).square().numpy()
    kernel = np.exp(-apart / (2 * circle.ARC_EPS))
    markov = kernel / kernel.sum(1, keepdims=True)
    exact = np.sort((1 - np.linalg.eigvals(markov).real) * 2 / circle.ARC_EPS)
    values = circle.spectrum(points, circle.ARC_EPS, 8)
    np.testing.assert_allclose(values, exact[:8], atol=1e-9)
    assert abs(values[0]) < 1e-9
    assert (values[1:clusters] > 1e-4).all()  # they do merge in the end
    assert (values[:clusters] < 0.05).all()
    assert (values[clusters:] > 1).all()


def test_connected_points_end_in_a_constant():
    points = circle.on_circle(circle.even_angles(60))
    depths = np.array([0, 200, 2000])
    within, _ = circle.deep_propagation(
        points, np.zeros(60, dtype=int), 0.025, depths)
    assert within[0] > 0.5
    assert 1e-3 < within[1] < 0.5 * within[0]
    # The slowest wave decays like exp(-eps / 2 x depth).
    assert within[2] < 1e-9


def test_clusters_form_before_they_merge():
    points, cluster = circle.arcs(3, circle.GAP, 40)
    depths = np.array([0, 300, 6000])
    within, between = circle.deep_propagation(
        points, cluster, circle.ARC_EPS, depths)
    assert within[0] > 0.5 and between[0] > 0.05
    assert within[1] < 0.01 * between[1] and between[1] > 0.9 * between[0]
    assert between[2] < 0.7 * between[0]
