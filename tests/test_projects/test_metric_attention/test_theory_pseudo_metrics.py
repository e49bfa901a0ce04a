"""General pseudo-metrics, against closed forms and searches."""

import numpy as np
import pytest
import torch

from mmstepnet.propagation import (
    dot_product_propagation,
    metric_propagation,
)
from projects.metric_attention.theory import pseudo_metrics as pseudo
from projects.metric_attention.theory.circle import (
    even_angles,
    on_circle,
)


@pytest.mark.parametrize('eps', [0.025, 0.1, 0.5])
def test_general_pseudo_metric_takes_to_the_nearest_point(eps):
    """Mean of the von Mises-Fisher distribution: coth k - 1 / k."""
    weight = pseudo.random_weight()
    seen = pseudo.nearest_on_sphere(weight, eps)
    k = seen['pull'] / (2 * eps)
    length = 1 / torch.tanh(k) - 1 / k
    torch.testing.assert_close(
        seen['out'], length[:, None] * seen['nearest'], rtol=0, atol=2e-4)
    # The nearest point is the one of largest score.
    sphere = pseudo.on_sphere(5000)
    best = sphere[(pseudo.on_sphere(50) @ weight @ sphere.T).argmax(1)]
    assert (best - seen['nearest']).norm(dim=1).max() < 0.05


def test_limit_of_the_nearest_point():
    errors = []
    for eps in (0.04, 0.02, 0.01):
        seen = pseudo.nearest_on_sphere(pseudo.random_weight(), eps)
        errors.append((seen['out'] - seen['nearest']).norm(dim=1).max())
    for before, after in zip(errors, errors[1:]):
        assert 1.9 < before / after < 2.1


def test_two_nearest_points_are_averaged():
    angle = even_angles(720)
    u = np.exp(np.cos(angle - 1))
    mean = (np.exp(np.cos(angle - 1)) + np.exp(-np.cos(angle - 1))) / 2
    errors = [
        np.abs(pseudo.two_nearest(angle, u, eps) - mean).max()
        for eps in (0.02, 0.01, 0.005)
    ]
    assert errors[-1] < 2e-3 < np.abs(u - mean).max()
    for before, after in zip(errors, errors[1:]):
        assert 1.9 < before / after < 2.1


def test_example_1_is_a_metric_on_the_ellipsoid():
    query = pseudo.random_weight()
    x = pseudo.on_ellipsoid(query, 300)
    torch.testing.assert_close(
        torch.einsum('ni,ki,kj,nj->n', x, query, query, x),
        torch.ones(300, dtype=torch.float64))
    f = pseudo.self_attention_metric(x, query)
    seen = x @ query.T
    squared = (seen[:, None] - seen).square().sum(-1)
    torch.testing.assert_close(f, squared / 2 - 1)
    # So that self-attention there is L2 attention.
    torch.testing.assert_close(
        dot_product_propagation(seen, seen, x),
        metric_propagation(seen, seen, x, 2.0))


def test_example_1_diffuses():
    """Coordinates on the sphere are eigenfunctions, of eigenvalue -2."""
    query, eps = pseudo.random_weight(), 0.01
    x = pseudo.on_ellipsoid(query, 4000)
    u = x @ query.T
    f = pseudo.self_attention_metric(x, query)
    # f = |.|^2 / 2 - 1: the heat kernel of eps is exp(-f / eps).
    change = 2 / eps * ((-f / eps).softmax(1) @ u - u)
    torch.testing.assert_close(change, -2 * u, rtol=0, atol=0.1)


def test_example_2_symmetry():
    generator = torch.Generator().manual_seed(0)
    x, first, other = (torch.randn(*shape, generator=generator).double()
                       for shape in ((20, 4), (3, ), (3, )))
    weight = torch.randn(3, 4, generator=generator).double()

    def f(second):
        return pseudo.graph_attention_metric(x, first, second, weight)

    for i, j in ((0, 1), (5, 5), (7, 2)):
        wanted = -np.tanh(first @ weight @ x[i] - other @ weight @ x[j])
        assert f(other)[i, j] == pytest.approx(wanted.item())
    torch.testing.assert_close(f(-first), f(-first).T)
    torch.testing.assert_close(f(first), -f(first).T)
    assert (f(other) - f(other).T).abs().max() > 0.1
    # A metric it is not: no point is the nearest to itself.
    assert (f(-first).argmin(1) == f(-first).argmin(1)[0]).all()


@pytest.mark.parametrize('dims', [2, 3, 5])
def test_example_3_by_search(dims):
    generator = torch.Generator().manual_seed(dims)
    axes = torch.linalg.qr(
        torch.randn(dims, dims, generator=generator).double()).Q
    weight = torch.randn(dims, generator=generator).double()
    x, y = (torch.nn.functional.normalize(
        torch.randn(count, dims, generator=generator).double())
        for count in (10, 20000))
    got = pseudo.nearest_by_axes(x, axes, weight)
    torch.testing.assert_close(got.norm(dim=1), torch.ones(10).double())

    def f(y):
        return ((x @ axes.T) * weight * (y @ axes.T)).sum(-1)

    assert (f(got) <= f(y[:, None]).amin(0) + 1e-12).all()
    # It is W^T x / |W^T x| of the pseudo-metric -x . W y.
    w = -axes.T @ weight.diag() @ axes
    torch.testing.assert_close(got, torch.nn.functional.normalize(x @ w))


def test_example_3_by_propagation():
    angle = even_angles(40)
    exact = pseudo.nearest_by_axes(on_circle(angle), *pseudo.turned_axes())
    errors = [
        float((pseudo.nearest_on_circle(angle, eps) - exact).norm(dim=1).max())
        for eps in (0.01, 0.005, 0.0025)
    ]
    assert errors[-1] < 0.005
    for before, after in zip(errors, errors[1:]):
        assert 1.9 < before / after < 2.1


def test_torus_grid_has_its_density():
    points = pseudo.torus_grid(400, 300)
    for k in range(2):
        got = np.exp(1j * points[:, k]).mean()
        assert got == pytest.approx(pseudo.CROWD / 2, abs=1e-5)
    assert np.cos(points.sum(1)).mean() == pytest.approx(
        pseudo.CROWD**2 / 4, abs=1e-5)


def test_theorem_6_weighs_the_nearest_points():
    angle = even_angles(12)
    points = pseudo.torus_grid(200, 30)
    eps = 0.05
    got = pseudo.nearest_circle(angle, eps, 200, 30)
    # The pseudo-metric as it is written.
    f = 2 * pseudo.tension(points[:, 1]) * (
        1 - np.cos(points[:, 0] - angle[:, None]))
    kernel = np.exp(-f / (2 * eps))
    wanted = kernel @ pseudo.sent(points) / kernel.sum(1)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-12)
    np.testing.assert_allclose(
        got, pseudo.nearest_circle_exact(angle, eps), rtol=0, atol=1e-3)
    rows = pseudo.nearest_circle(angle, eps, 200, 30, values=False)
    np.testing.assert_allclose(
        rows, kernel / kernel.sum(1, keepdims=True), rtol=0, atol=1e-12)


def test_theorem_6_in_the_limit():
    angle = even_angles(12)
    limit = pseudo.nearest_circle_limit(angle)
    errors = [np.abs(pseudo.nearest_circle_exact(angle, eps) - limit).max()
              for eps in (0.02, 0.01, 0.005)]
    for before, after in zip(errors, errors[1:]):
        assert 1.9 < before / after < 2.1
    # Without m_0 the mean is another one.
    wrong = pseudo.nearest_circle_limit(angle, weighted=False)
    assert errors[-1] < 0.01 < 0.2 < np.abs(wrong - limit).max()
