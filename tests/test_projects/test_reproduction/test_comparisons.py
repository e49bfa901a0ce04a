"""Paired tests against the formula, and what they make of a claim."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import gamma

from projects.reproduction.comparisons import (
    HELD,
    NO_RESULTS,
    NOT_HELD,
    UNDECIDABLE,
    Comparison,
    holm,
    judge,
    pair,
)

SURE = Comparison('sure', (1.0, 1.1, 0.9, 1.05))
WORSE = Comparison('worse', (-1.0, -1.1, -0.9, -1.05))
UNSURE = Comparison('unsure', (1.0, -0.9, 0.4))
FEW = Comparison('few', (5.0, 5.1))
EMPTY = Comparison('empty', ())


def test_t_test_is_the_area_of_the_tails():
    d = np.array(UNSURE.differences)
    t = abs(d.mean()) / (d.std(ddof=1) / len(d)**0.5)
    df = len(d) - 1

    def density(x):
        return (gamma((df + 1) / 2) / (df * np.pi)**0.5 / gamma(df / 2)
                * (1 + x * x / df)**(-(df + 1) / 2))
    assert UNSURE.p == pytest.approx(2 * quad(density, t, np.inf)[0])


def test_equal_differences():
    """Accuracies come in steps; the same three times is no certainty."""
    for same in (0.0, 0.2):
        found = Comparison('', (same, same + 1e-14, same))
        assert found.p is None
        assert judge([found]) == judge([found, SURE]) == UNDECIDABLE


def test_no_test_before_all_planned_seeds():
    assert SURE.p is not None
    few = len(SURE.differences)
    assert Comparison('', SURE.differences, least=few + 1).p is None


@pytest.mark.parametrize('value', [float('nan'), float('inf')])
def test_differences_are_finite(value):
    with pytest.raises(ValueError, match='a: differences must be finite'):
        Comparison('a', (1.0, value))


def test_seeds_are_paired():
    def results(**values):
        return [dict(seed=int(s[1:]), v=v) for s, v in values.items()]
    ours = results(s0=3.0, s2=5.0, s1=None, s4=7.0)
    others = results(s2=1.0, s0=0.5, s1=9.0, s3=2.0)
    assert pair('', ours, others, lambda r: r['v']).differences == (2.5, 4.0)


def test_holm():
    # Smallest times 3, next times 2, largest times 1, never falling.
    assert holm(dict(a=0.03, b=0.01, c=0.04)) == pytest.approx(
        dict(b=0.03, a=0.06, c=0.06))
    assert holm(dict(a=0.9, b=0.8)) == dict(a=1.0, b=1.0)


@pytest.mark.parametrize('comparisons, verdict', [
    ([SURE], HELD),
    ([SURE, UNSURE], UNDECIDABLE),
    ([SURE, FEW], UNDECIDABLE),
    ([SURE, EMPTY], UNDECIDABLE),
    ([SURE, UNSURE, WORSE], NOT_HELD),
    ([FEW], UNDECIDABLE),
    ([EMPTY, EMPTY], NO_RESULTS),
    ([], NO_RESULTS),
])
def test_verdicts(comparisons, verdict):
    assert judge(comparisons) == verdict


BORDERLINE = Comparison('borderline', (1.0, 1.2, 0.55))
BELOW = Comparison('below', (-1.0, -1.2, -0.55))


def test_every_difference_must_be_sure_but_no_surer_for_being_one_of_many():
    assert 0.025 < BORDERLINE.p < 0.05
    assert judge([BORDERLINE]) == HELD
    assert judge([BORDERLINE, SURE]) == HELD
    assert judge([BORDERLINE, UNSURE]) == UNDECIDABLE


def test_one_of_many_that_falls_behind_needs_a_smaller_p():
    assert judge([BELOW]) == NOT_HELD
    # Also of those that have no p yet: a verdict does not go as they come.
    for other in (UNSURE, FEW, EMPTY):
        assert judge([BELOW, other]) == UNDECIDABLE


def test_evidence():
    assert UNSURE.format() == (
        f'unsure: +0.17 ± {np.std(UNSURE.differences, ddof=1):.2f} '
        f'(3 seeds, p = {UNSURE.p:.2g})')
    assert FEW.format(1) == 'few: +5.0 ± 0.1 (2 seeds)'
    assert EMPTY.format() == 'empty: no results yet'
