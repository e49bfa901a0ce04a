"""Paired tests against the formula, and what they make of a claim."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import gamma

from projects.reproduction.comparisons import (
    HELD,
    REFUTED,
    UNDECIDED,
    WAITING,
    Comparison,
    judge,
    pair,
)
from projects.reproduction.power import difference_power, equivalence_power

SURE = Comparison('sure', (1.0, 1.1, 0.9, 1.05))
WORSE = Comparison('worse', (-1.0, -1.1, -0.9, -1.05))
UNSURE = Comparison('unsure', (1.0, -0.9, 0.4))
FEW = Comparison('few', (5.0, 5.1, 4.9), planned=4)
SMALL = Comparison('small', (0.1, -0.1, 0.05, -0.02))
SURE_AND_SMALL = Comparison('sure and small', (0.1, 0.11, 0.12))
EMPTY = Comparison('empty', ())


def test_t_test_is_the_area_of_the_tails():
    d = np.array(UNSURE.differences)
    t = abs(d.mean()) / (d.std(ddof=1) / len(d)**0.5)
    df = len(d) - 1

    def density(x):
        return (gamma((df + 1) / 2) / (df * np.pi)**0.5 / gamma(df / 2)
                * (1 + x * x / df)**(-(df + 1) / 2))
    assert UNSURE.p == pytest.approx(2 * quad(density, t, np.inf)[0])


def test_equivalence_is_an_interval_within_the_margin():
    """Two one-sided tests at 5 % are a 90 % interval inside of it."""
    for found in (UNSURE, SMALL, SURE_AND_SMALL):
        low, high = found.interval(0.1)
        for margin in (0.05, 0.11, 0.13, 0.5, 2.5):
            inside = -margin < low and high < margin
            assert (found.equivalence_p(margin) < 0.05) == inside


def test_interval_holds_what_the_test_does_not_refuse():
    for found in (SURE, UNSURE, SMALL):
        for end in found.interval():
            moved = Comparison('', tuple(d - end for d in found.differences))
            assert moved.p == pytest.approx(0.05)


def test_equal_differences():
    """Accuracies come in steps; the same three times is no certainty."""
    for same in (0.0, 0.2):
        found = Comparison('', (same, same + 1e-14, same))
        assert found.p == found.equivalence_p(0.5) == 1
        assert found.interval() is None
        assert judge([found], 0.5) == judge([found, SURE], 0.5) == UNDECIDED
        assert found.format().endswith('all equal (3 seeds)')


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


def test_only_planned_seeds_count():
    results = [dict(seed=s, v=v) for s, v in enumerate((9., 1., 2., 9.))]
    zeros = [dict(seed=s, v=0.) for s in range(4)]
    found = pair('', results, zeros, lambda r: r['v'], range(1, 3), 0.5)
    assert found.differences == (1.5, 2.5) and found.complete
    found = pair('', results[:2], zeros, lambda r: r['v'], range(1, 3))
    assert found.differences == (1.0, ) and not found.complete


@pytest.mark.parametrize('comparisons, verdict', [
    ([SURE], HELD),
    ([SURE, UNSURE], UNDECIDED),
    ([SURE, FEW], WAITING),
    ([SURE, EMPTY], WAITING),
    ([SURE, UNSURE, WORSE], REFUTED),
    ([WORSE, FEW], WAITING),
    ([SMALL], REFUTED),
    ([SURE, SMALL], REFUTED),
    # A difference that is found counts, however small.
    ([SURE_AND_SMALL], HELD),
    ([SURE_AND_SMALL, SURE], HELD),
    ([], WAITING),
])
def test_verdicts(comparisons, verdict):
    assert judge(comparisons, 0.5) == verdict


def test_without_a_margin_nothing_is_too_small():
    assert judge([SMALL], None) == UNDECIDED


BORDERLINE = Comparison('borderline', (1.0, 1.2, 0.55))
BELOW = Comparison('below', (-1.0, -1.2, -0.55))
NARROW = Comparison('narrow', (0.2, -0.4, 0.3, -0.3))


def test_every_difference_must_be_sure_but_no_surer_for_being_one_of_many():
    assert 0.025 < BORDERLINE.p < 0.05
    assert judge([BORDERLINE], 0.5) == HELD
    assert judge([BORDERLINE, SURE], 0.5) == HELD
    assert judge([BORDERLINE], 0.5, level=0.025) == UNDECIDED


@pytest.mark.parametrize('found', [BELOW, NARROW])
def test_one_of_many_that_refutes_needs_a_smaller_p(found):
    p = found.p if found is BELOW else found.equivalence_p(0.5)
    assert 0.0125 < p < 0.05
    assert judge([found], 0.5) == REFUTED
    assert judge([found, UNSURE, UNSURE, UNSURE], 0.5) == UNDECIDED


def test_seeds_that_a_decision_takes():
    text = UNSURE.needed(0.5, 0.025)
    sd = np.std(UNSURE.differences, ddof=1)
    found, shown = (int(word) for word in text.split() if word.isdigit())
    for power, seeds in ((difference_power, found),
                         (equivalence_power, shown)):
        assert power(sd, seeds, 0.5, 0.025) >= 0.8
        assert power(sd, seeds - 1, 0.5, 0.025) < 0.8


def test_evidence():
    low, high = UNSURE.interval()
    assert UNSURE.format() == (
        f'unsure: +0.17, 95% interval {low:+.2f} to {high:+.2f} (3 seeds)')
    assert Comparison('one', (0.25, )).format(1) == 'one: +0.2 (1 seed)'
    assert EMPTY.format() == 'empty: no seed of both'
