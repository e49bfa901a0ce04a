"""Correlations against NumPy, and p-values against all orders."""

from itertools import combinations, permutations

import numpy as np
import pytest
from scipy.stats import rankdata

from mmstepnet.stiffness import correlate_ranks
from mmstepnet.stiffness.correlations import row_correlations


def test_correlation_of_rows():
    x, y = np.random.default_rng(0).random((2, 7, 20), dtype=np.float32)
    x[0] = 0.25
    x[1] = np.float32(0.25) + np.spacing(np.float32(0.25)) * (y[1] > 0.5)
    found = row_correlations(x, y)
    assert np.isnan(found[:2]).all()
    expected = [np.corrcoef(a, b)[0, 1] for a, b in zip(x[2:], y[2:])]
    np.testing.assert_allclose(found[2:], expected, rtol=1e-6)
    assert np.isnan(row_correlations(x[:, :2], y[:, :2])).all()


@pytest.mark.parametrize('accuracy', [
    (3, 2, 1), (2, 1, 3, 5), (1, 3, 2, 2, 5), (1, 1, 2, 3, 3)])
def test_p_values_are_the_share_of_orders_as_extreme(accuracy):
    """Three runs in order are no proof: p = 1/3, both ways."""
    tns = list(range(len(accuracy)))
    found = correlate_ranks(tns, accuracy, 'runs')
    ranks = rankdata(accuracy)

    def concordance(order):
        return sum(np.sign((order[i] - order[j]) * (ranks[i] - ranks[j]))
                   for i, j in combinations(tns, 2))

    def spearman(order):
        return np.corrcoef(order, ranks)[0, 1]

    assert found.spearman == pytest.approx(spearman(tns))
    if len(set(accuracy)) == len(accuracy):
        assert found.kendall == pytest.approx(
            concordance(tns) / len(list(combinations(tns, 2))))
    for statistic, p in ((spearman, found.spearman_p),
                         (concordance, found.kendall_p)):
        values = np.array([statistic(order) for order in permutations(tns)])
        share = min(np.mean(values >= statistic(tns) - 1e-9),
                    np.mean(values <= statistic(tns) + 1e-9))
        assert p == pytest.approx(min(1, 2 * share))
    assert f'Kendall τ = {found.kendall:.3f}' in str(found)


def test_too_few_or_constant():
    for given, text in ((([1, 2], [1, 2]), 'at least 3 runs'),
                        (([1, 1, 1], [1, 2, 3]), 'all runs have TNS 1'),
                        (([1, 2, 3], [2, 2, 2]), 'all runs have accuracy 2')):
        assert text in correlate_ranks(*given, 'runs')
