"""Paired differences: against SciPy's tests, and formulas as loops."""

import numpy as np
import pytest
from scipy import stats

from projects.ladder.statistics import (
    Difference,
    compare_over_pictures,
    compare_over_seeds,
    give_verdict,
    holm,
)


def accuracies(seed, lead):
    draws = np.random.default_rng(seed).normal(75, 0.4, (2, 12))
    return draws[0] + lead, draws[1]


@pytest.mark.parametrize('lead', [0.0, 0.2, -0.4, 1.0])
@pytest.mark.parametrize('seed', range(3))
def test_seeds_are_compared_by_the_paired_t_test(seed, lead):
    ours, others = accuracies(seed, lead)
    found = compare_over_seeds(ours - others)
    wanted = stats.ttest_rel(ours, others)
    assert found.freedom == wanted.df == 11
    assert found.p_value() == pytest.approx(wanted.pvalue)
    for level in (0.05, 0.025, 0.1):
        assert found.interval(level) == pytest.approx(
            tuple(wanted.confidence_interval(1 - level))
        )
    # Two one-sided tests, whose p-values say the same as the interval.
    for margin in (0.25, 0.5, 1.0):
        p = max(
            stats.ttest_1samp(
                ours - others, -margin, alternative='greater'
            ).pvalue,
            stats.ttest_1samp(
                ours - others, margin, alternative='less'
            ).pvalue,
        )
        assert found.is_within(margin) == (p < 0.05)


def test_pictures_and_seeds_are_both_samples():
    """Variance and Satterthwaite's degrees of freedom, one by one."""
    generator = np.random.default_rng(0)
    ours = generator.random((4, 50)) < 0.8
    others = generator.random((4, 50)) < 0.7
    seeds, pictures = [], []
    for s in range(4):
        seeds.append(
            sum(100 * (int(ours[s, k]) - int(others[s, k])) for k in range(50))
            / 50
        )
    for k in range(50):
        pictures.append(
            sum(100 * (int(ours[s, k]) - int(others[s, k])) for s in range(4))
            / 4
        )
    mean = sum(seeds) / 4
    a = sum((x - mean) ** 2 for x in seeds) / 3 / 4
    b = sum((x - mean) ** 2 for x in pictures) / 49 / 50
    found = compare_over_pictures(ours, others)
    assert found == pytest.approx(
        (mean, (a + b) ** 0.5, (a + b) ** 2 / (a**2 / 3 + b**2 / 49))
    )
    assert 3 < found.freedom < 52


def test_where_pictures_do_not_differ_seeds_alone_are_the_sample():
    ours = np.repeat([[True], [False], [True]], 40, axis=1)
    others = np.zeros((3, 40), bool)
    found = compare_over_pictures(ours, others)
    alone = stats.ttest_1samp([100, 0, 100], 0)
    assert found.freedom == pytest.approx(2)
    assert found.p_value() == pytest.approx(alone.pvalue)


def test_rungs_that_answer_alike_have_no_difference():
    ours = np.random.default_rng(0).random((4, 50)) < 0.8
    same = compare_over_pictures(ours, ours)
    assert same.p_value() == 1 and same.is_within(0.01)
    assert compare_over_seeds([0.3, 0.3, 0.3]).p_value() == 0


@pytest.mark.parametrize(
    'p_values, answered',
    [
        # By hand: 0.05 / 3, / 2, / 1, and none behind the first that fails.
        ((0.001, 0.02, 0.04), (True, True, True)),
        ((0.04, 0.001, 0.02), (True, True, True)),
        ((0.001, 0.03, 0.04), (True, False, False)),
        ((0.02, 0.02, 0.02), (False, False, False)),
        ((0.016, 0.024, 0.06), (True, True, False)),
        ((0.024, 0.051), (True, False)),
        ((0.05,), (True,)),
    ],
)
def test_holm(p_values, answered):
    assert holm(p_values) == list(answered)


@pytest.mark.parametrize(
    'mean, error, is_answered, word',
    [
        (1.0, 0.1, True, 'ahead'),
        (-1.0, 0.1, True, 'behind'),
        (0.3, 0.05, True, 'ahead, by less than 0.5 points'),
        (-0.3, 0.05, True, 'behind, by less than 0.5 points'),
        (0.1, 0.1, False, 'worth less than 0.5 points'),
        (0.4, 0.2, False, 'undecided'),
        (0.0, 1.0, False, 'undecided'),
    ],
)
def test_words(mean, error, is_answered, word):
    assert give_verdict(Difference(mean, error, 11), is_answered, 0.5) == word
