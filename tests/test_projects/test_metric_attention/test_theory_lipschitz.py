"""Norms of Jacobians, against the derivative at the origin by hand."""

import numpy as np
import torch
from torch.autograd.functional import jacobian

from projects.metric_attention.theory import lipschitz


def test_derivative_at_the_origin_is_the_points_covariance():
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
