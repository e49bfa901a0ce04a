"""Ranks of runs: correlations and p-values against all orders."""

from itertools import combinations, permutations

import numpy as np
import pytest
from scipy.stats import rankdata

from mmstepnet.stiffness import correlate_ranks


@pytest.mark.parametrize(
    'accuracy', [(3, 2, 1), (2, 1, 3, 5), (1, 3, 2, 2, 5), (1, 1, 2, 3, 3)]
)
def test_p_values_are_the_share_of_orders_as_extreme(accuracy):
    """Three runs in order are no proof: p = 1/3, both ways."""
    tns = list(range(len(accuracy)))
    found = correlate_ranks(tns, accuracy, 'runs')
    ranks = rankdata(accuracy)

    def concordance(order):
        return sum(
            np.sign((order[i] - order[j]) * (ranks[i] - ranks[j]))
            for i, j in combinations(tns, 2)
        )

    def spearman(order):
        return np.corrcoef(order, ranks)[0, 1]

    assert found.spearman == pytest.approx(spearman(tns))
    if len(set(accuracy)) == len(accuracy):
        assert found.kendall == pytest.approx(
            concordance(tns) / len(list(combinations(tns, 2)))
        )
    for statistic, p in (
        (spearman, found.spearman_p),
        (concordance, found.kendall_p),
    ):
        values = np.array([statistic(order) for order in permutations(tns)])
        share = min(
            np.mean(values >= statistic(tns) - 1e-9),
            np.mean(values <= statistic(tns) + 1e-9),
        )
        assert p == pytest.approx(min(1, 2 * share))
    assert f'Kendall τ = {found.kendall:.3f}' in str(found)


def test_too_few_or_constant():
    for given, text in (
        (([1, 2], [1, 2]), 'at least 3 runs'),
        (([1, 1, 1], [1, 2, 3]), 'all runs have TNS 1'),
        (([1, 2, 3], [2, 2, 2]), 'all runs have accuracy 2'),
    ):
        assert text in correlate_ranks(*given, 'runs')
