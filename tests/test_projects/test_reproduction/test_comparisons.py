"""Paired tests against formulas, and what they make of a claim."""

import numpy as np
import pytest
from scipy.stats import t as student

from projects.reproduction.comparisons import (
    compare,
    compare_variances,
    interval,
    judge,
)

UNSURE, NARROW = (1.0, -0.9, 0.4), (0.2, -0.4, 0.3, -0.3)
SURE, WORSE = (1.0, 1.1, 0.9, 1.05), (-1.0, -1.1, -0.9, -1.05)
SMALL, SURE_AND_SMALL = (0.1, -0.1, 0.05, -0.02), (0.1, 0.11, 0.12)
BORDERLINE, BELOW = (1.0, 1.2, 0.55), (-1.0, -1.2, -0.55)


@pytest.mark.parametrize('values', [UNSURE, SMALL, SURE_AND_SMALL])
def test_equivalence_is_an_interval_within_the_margin(values):
    """Two one-sided tests at 5 % are a 90 % interval inside of it."""
    low, high = interval(values, 0.1)
    for margin in (0.05, 0.11, 0.13, 0.5, 2.5):
        inside = -margin < low and high < margin
        assert (compare('', values, margin=margin).p_small < 0.05) == inside
    assert compare('', values).p_small == 1


def test_variances_by_brown_and_forsythe():
    """An F-test of the distances to the medians."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(0, 3, 9), rng.normal(0, 1, 9)
    found = compare_variances('', a, b)
    z = [abs(v - np.median(v)) for v in (a, b)]
    t = (z[0].mean() - z[1].mean()) / np.sqrt(
        (z[0].var(ddof=1) + z[1].var(ddof=1)) / 9
    )
    assert found.p == pytest.approx(2 * student.sf(abs(t), 16))
    assert found.size == pytest.approx(np.var(a, ddof=1) - np.var(b, ddof=1))
    assert compare_variances('', (1.0, 1.0), (2.0, 2.0)).p == 1


def test_equal_differences():
    """Accuracies come in steps; the same three times is no certainty."""
    for same in (0.0, 0.2):
        found = compare('', (same, same + 1e-14, same), margin=0.5)
        assert found.p == found.p_small == 1
        assert found.found.endswith('all equal (3 seeds)')
        assert judge([found, compare('', SURE)]) == 'undecided'
    assert compare('', (0.25,), 1).found == '+0.2 (1 seed)'


@pytest.mark.parametrize(
    'values, verdict',
    [
        pytest.param([SURE], 'held', id='sure'),
        pytest.param([SURE, UNSURE], 'undecided', id='sure and unsure'),
        pytest.param([SURE, UNSURE, WORSE], 'refuted', id='sure and worse'),
        pytest.param([SMALL], 'refuted', id='small'),
        pytest.param([SURE, SMALL], 'refuted', id='sure and small'),
        # A difference that is found counts, however small.
        pytest.param([SURE_AND_SMALL, SURE], 'held', id='small but sure'),
        # Every difference must be sure, but no surer for being one of many.
        pytest.param([BORDERLINE, SURE], 'held', id='borderline'),
        # One of many that refutes needs a smaller p.
        pytest.param([BELOW], 'refuted', id='below alone'),
        pytest.param([NARROW], 'refuted', id='narrow alone'),
        pytest.param(
            [BELOW, UNSURE, UNSURE, UNSURE], 'undecided', id='below among four'
        ),
        pytest.param(
            [NARROW, UNSURE, UNSURE, UNSURE],
            'undecided',
            id='narrow among four',
        ),
    ],
)
def test_verdicts(values, verdict):
    assert judge([compare('', v, margin=0.5) for v in values]) == verdict


def test_a_verdict_depends_on_level_and_margin():
    assert judge([compare('', BORDERLINE)], level=0.025) == 'undecided'
    assert judge([compare('', SMALL)]) == 'undecided'
