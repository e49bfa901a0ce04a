"""Correlations against NumPy, and p-values against all orders."""

from itertools import combinations, permutations

import numpy as np
import pytest
from scipy.stats import rankdata

from mmstepnet.stiffness import correlate_ranks
from mmstepnet.stiffness.correlations import row_correlations


def test_correlation_of_rows():
    x, y = np.random.default_rng(0).random((2, 7, 20))
    expected = [np.corrcoef(a, b)[0, 1] for a, b in zip(x, y)]
    np.testing.assert_allclose(row_correlations(x, y), expected, rtol=1e-12)


def test_undefined_correlations():
    x, y = np.random.default_rng(1).random((2, 3, 20), dtype=np.float32)
    x[0] = 0.25
    x[1] = np.float32(0.25) + np.spacing(np.float32(0.25)) * (y[1] > 0.5)
    found = row_correlations(x, y)
    assert np.isnan(found[:2]).all() and np.isfinite(found[2])
    assert np.isnan(row_correlations(x[:, :2], y[:, :2])).all()


def test_rank_correlations():
    tns, accuracy = np.random.default_rng(3).random((2, 9))
    found = correlate_ranks(tns, accuracy, 'runs')
    pairs = list(combinations(range(9), 2))
    signs = [np.sign((tns[i] - tns[j]) * (accuracy[i] - accuracy[j]))
             for i, j in pairs]
    assert found.kendall == pytest.approx(sum(signs) / len(pairs))
    ranks = [np.argsort(np.argsort(v)) for v in (tns, accuracy)]
    assert found.spearman == pytest.approx(np.corrcoef(*ranks)[0, 1])
    assert f'Kendall τ = {found.kendall:.3f}' in str(found)


@pytest.mark.parametrize(
    'accuracy', [(3, 2, 1), (2, 1, 3, 5), (1, 3, 2, 2, 5), (1, 1, 2, 3, 3)])
def test_p_values_are_the_share_of_orders_as_extreme(accuracy):
    """Three runs in order are no proof: p = 1/3, both ways."""
    tns = list(range(len(accuracy)))
    found = correlate_ranks(tns, accuracy, 'runs')
    pairs = list(combinations(tns, 2))
    ranks = rankdata(accuracy)

    def concordance(order):
        return sum(np.sign((order[i] - order[j]) * (ranks[i] - ranks[j]))
                   for i, j in pairs)
    for statistic, p in (
            (lambda order: np.corrcoef(order, ranks)[0, 1], found.spearman_p),
            (concordance, found.kendall_p)):
        values = np.array([statistic(order) for order in permutations(tns)])
        upper = np.mean(values >= statistic(tns) - 1e-9)
        lower = np.mean(values <= statistic(tns) + 1e-9)
        assert p == pytest.approx(min(1, 2 * min(upper, lower)))


def test_too_few_or_constant():
    assert 'at least 3 runs' in correlate_ranks([1, 2], [1, 2], 'runs')
    assert 'all runs have TNS 1' in correlate_ranks(
        [1, 1, 1], [1, 2, 3], 'runs')
    assert 'all rows have accuracy 2' in correlate_ranks(
        [1, 2, 3], [2, 2, 2], 'rows')
