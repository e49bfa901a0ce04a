"""Planned power against simulated experiments and SciPy's own tests."""

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from projects.reproduction.power import (
    difference_power,
    equivalence_power,
    seeds_needed,
)
from tests.programs import run_tool

EXPERIMENTS = 40_000
# Four standard errors of a share of so many.
NEAR = 4 * 0.5 / EXPERIMENTS**0.5


def experiments(sd, seeds, difference):
    rng = np.random.default_rng(seeds)
    return rng.normal(difference, sd, (EXPERIMENTS, seeds))


@pytest.mark.parametrize('sd, seeds, level', [
    (0.4, 4, 0.05), (0.65, 10, 0.025), (0.9, 25, 0.0125)])
@pytest.mark.parametrize('difference', [0.0, 0.3, 0.5])
def test_power_for_a_difference(sd, seeds, level, difference):
    found = ttest_1samp(experiments(sd, seeds, difference), 0, axis=1)
    share = np.mean((found.pvalue < level) & (found.statistic > 0))
    assert difference_power(sd, seeds, difference, level) == pytest.approx(
        share, abs=NEAR)


@pytest.mark.parametrize('sd, seeds, level', [
    (0.2, 3, 0.05), (0.65, 10, 0.05), (0.9, 25, 0.025), (0.4, 30, 0.0125)])
@pytest.mark.parametrize('difference', [0.0, -0.2, 0.5])
def test_power_for_equivalence(sd, seeds, level, difference):
    data = experiments(sd, seeds, difference)
    above = ttest_1samp(data, -0.5, axis=1, alternative='greater').pvalue
    below = ttest_1samp(data, 0.5, axis=1, alternative='less').pvalue
    share = np.mean(np.maximum(above, below) < level)
    assert equivalence_power(sd, seeds, 0.5, level, difference) == (
        pytest.approx(share, abs=NEAR))


@pytest.mark.parametrize('sd', [0.05, 0.4, 3.0])
def test_at_the_margin_equivalence_has_its_level(sd):
    """Or less, where the other of the two tests fails as well."""
    found = equivalence_power(sd, 40, 0.5, 0.05, 0.5)
    if sd < 1:
        assert found == pytest.approx(0.05, abs=1e-6)
    else:
        assert found < 0.05


def test_seeds_needed_are_the_fewest():
    def power(seeds):
        return equivalence_power(0.65, seeds, 0.5, 0.025)
    seeds = seeds_needed(power)
    assert power(seeds) >= 0.8 > power(seeds - 1)
    assert seeds_needed(lambda n: 1.0) == 2


@pytest.mark.parametrize('args, match', [
    ((0.0, 5, 0.5, 0.05), 'sd must be above 0, got 0.0'),
    ((0.4, 1, 0.5, 0.05), 'at least 2 seeds, got 1'),
    ((0.4, 5, 0.5, 1.0), 'level must lie between 0 and 0.5, got 1.0')])
def test_bad_arguments(args, match):
    for power in (difference_power, equivalence_power):
        with pytest.raises(ValueError, match=match):
            power(*args)
    with pytest.raises(ValueError, match='margin must be above 0, got 0'):
        equivalence_power(0.4, 5, 0, 0.05)


def test_the_printed_table():
    out = run_tool('-m', 'projects.reproduction.power', '--sd', 0.65,
                   '--seeds', 10, '--margin', 0.5, '--claims', 2).stdout
    expected = (difference_power(0.65, 10, 0.5, 0.025),
                equivalence_power(0.65, 10, 0.5, 0.025))
    assert '| 0.65 | 10 | {:.3f} | {:.3f} |'.format(*expected) in out
    needed = seeds_needed(lambda n: difference_power(0.65, n, 0.5, 0.025))
    assert f'| 0.65 | for 80% power | {needed} |' in out
