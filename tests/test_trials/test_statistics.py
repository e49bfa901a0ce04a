"""The statistics against formulas, and against tables that are drawn."""

import numpy as np
import pytest
from scipy import stats

from mmstepnet.trials.statistics import (
    POWER,
    SURE,
    Difference,
    compare_answers,
    holm,
    shown_difference,
)
from tests.test_trials.simulated import KINDS, Tables, ask, simulate


def answers(*folds):
    return [np.array(fold, bool) for fold in folds]


def test_the_larger_error_is_that_of_the_folds():
    """Two folds in which everything differs, and three in which nothing."""
    ours = answers([1] * 10, [1] * 10, [0] * 10, [0] * 10, [0] * 10)
    others = answers(*[[0] * 10] * 5)
    difference = compare_answers(ours, others)
    means = [100.0, 100.0, 0.0, 0.0, 0.0]
    wanted = stats.ttest_1samp(means, 0.0)
    assert difference.freedom == 4
    assert difference.mean == pytest.approx(40.0)
    assert difference.p_value() == pytest.approx(wanted.pvalue)
    low, high = wanted.confidence_interval(0.95)
    assert difference.reach() == pytest.approx((high - low) / 2)


def test_the_larger_error_is_that_of_the_pictures():
    """Each fold has the same mean, so that it knows no error."""
    ours = answers(*[[1, 1, 0, 0]] * 5)
    others = answers(*[[1, 0, 0, 0]] * 5)
    difference = compare_answers(ours, others)
    answered = [1.0 * np.concatenate(rung) for rung in (ours, others)]
    wanted = stats.ttest_rel(*answered)
    assert difference.freedom == 19
    assert difference.mean == pytest.approx(25.0)
    assert difference.p_value() == pytest.approx(wanted.pvalue)


def test_rungs_that_agree_on_everything():
    same = answers(*[[1, 0]] * 5)
    difference = compare_answers(same, same)
    assert difference == (0.0, 0.0, 9, 10)
    assert difference.p_value() == 1.0


@pytest.mark.parametrize('pictures', [100, 1000])
def test_what_agreement_shows(pictures):
    """Of rungs that differ on 3 / n, five tables in 100 do not show it."""
    rare = 3 / pictures
    assert stats.binom.pmf(0, pictures, rare) == pytest.approx(0.05, rel=0.06)
    same = answers(*[[1] * (pictures // 5)] * 5)
    difference = compare_answers(same, same)
    assert not difference.is_within(100 * rare)
    assert difference.is_within(104 * rare)  # Student's t, not the normal
    for margin in (0.1, 1.0):
        factor = difference.deciding_factor(margin)
        more = factor * difference.pictures
        later = difference._replace(pictures=1.001 * more)
        sooner = difference._replace(pictures=0.999 * more)
        assert later.is_within(margin) and not sooner.is_within(margin)


@pytest.mark.parametrize(
    'p_values, answered',
    [
        pytest.param([0.024, 0.049], [True, True], id='both'),
        pytest.param([0.026, 0.049], [False, False], id='none'),
        pytest.param([0.9, 0.024], [False, True], id='the second'),
        pytest.param([0.04], [True], id='one question'),
        pytest.param([], [], id='no question'),
    ],
)
def test_holm(p_values, answered):
    assert holm(p_values) == answered


def test_what_pictures_can_show():
    """(1.96 + 0.84) sqrt(0.1 / N), in points."""
    z = stats.norm.isf(0.025) + stats.norm.isf(0.2)
    for pictures in (30, 1200):
        wanted = 100 * z * np.sqrt(0.1 / pictures)
        assert shown_difference(pictures) == pytest.approx(wanted, rel=1e-3)
    assert f'{shown_difference(30):.0f}' == '16'
    assert f'{shown_difference(1200):.1f}' == '2.6'


@pytest.mark.parametrize('mean', [0.0, 0.4, -1.1, 2.5])
def test_so_many_pictures_would_decide(mean):
    """And a tenth fewer would not."""
    margin = 2.0
    factor = Difference(mean, 1.5, 4, 400).deciding_factor(margin)
    for more, decides in ((1.001, True), (0.9, False)):
        times = more * factor
        later = Difference(mean, 1.5 / times**0.5, 4, 400 * times)
        is_found = later.p_value() < 0.025
        assert (is_found or later.is_within(margin)) is decides


@pytest.mark.parametrize('kind', KINDS)
def test_on_tables_of_known_variances(kind):
    """With 400 draws a share of 0.05 has a deviation of 0.011."""
    ahead, false, covered, found = simulate(300, KINDS[kind], 400)
    assert ahead <= false <= 0.06 + 3 * 0.011
    assert 0.93 - 3 * 0.011 <= covered <= 0.98 + 3 * 0.011
    if KINDS[kind] is not None:
        assert abs(found - POWER) < 0.05 + 3 * 0.025


def test_a_difference_that_is_sure_is_found_with_80_percent():
    tables = Tables(500, 0.0)
    gap = shown_difference(500, SURE)
    found = [ask(tables.draw(gap, gap))[1][0] for _ in range(300)]
    assert abs(np.mean(found) - 0.8) < 0.05 + 3 * 0.023
