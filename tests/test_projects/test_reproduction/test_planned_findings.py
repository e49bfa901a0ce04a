"""Verdicts of planned claims, on results that are made to decide."""

import re

import numpy as np
import pytest
from scipy.stats import f

from projects.reproduction.claims import (
    DIFFERENCE,
    LOSS,
    METRIC_PLAN,
    VARIANCE,
    Claim,
    PlannedClaim,
)
from projects.reproduction.columns import Column
from projects.reproduction.comparisons import (
    WAITING,
    VarianceComparison,
    judge,
)
from projects.reproduction.planned_findings import judge_plan
from projects.reproduction.power import difference_power

from .test_findings import results, table_1


def plan(seeds):
    return [PlannedClaim(Claim('A', pairs=(('StepNet', other), )), '1',
                         'CIFAR10', seeds) for other in ('plain', 'SE')]


def test_the_plan_waits_for_its_seeds_and_shows_nothing_before():
    column = table_1(seeds=range(9))
    a, b = judge_plan([column], plan(range(3, 10)))
    assert a.verdict == b.verdict == 'no verdict before all planned seeds'
    assert a.evidence == ('StepNet − ResNet: 6 of 7 seeds', )


def test_only_the_planned_seeds_decide():
    column = table_1(seeds=range(3, 9), StepNet=80)
    for row in column.results:  # others, which would turn all around
        column.results[row] += results(
            0 if row == 'StepNet' else 99, 20, seeds=range(3))
    a, _ = judge_plan([column], plan(range(3, 9)))
    assert a.verdict == 'held'
    assert len(a.comparisons[0].differences) == 6


def test_the_plan_is_corrected_for_its_claims():
    column = table_1()
    for result, d in zip(column.results['StepNet'],
                         (0.3, 0.9, 1.3, 0.05, 1.0)):
        seed = result['seed']
        other, = (r for r in column.results['ResNet'] if r['seed'] == seed)
        result['last']['metrics']['accuracy/top1'] = (
            other['last']['metrics']['accuracy/top1'] + d)
    one, = judge_plan([column], plan(range(5))[:1])
    assert 0.025 < one.comparisons[0].p < 0.05 and one.verdict == 'held'
    two, _ = judge_plan([column], plan(range(5)))
    assert two.verdict == 'undecided'
    line, = (line for line in two.evidence if '80% power takes' in line)
    measured = int(re.search(r'(\d+) for a difference like', line)[1])
    c = two.comparisons[0]
    for seeds, enough in ((measured, True), (measured - 1, False)):
        power = difference_power(c.deviation, seeds, c.mean, 0.025)
        assert (power >= 0.8) == enough


def test_a_difference_too_small_to_matter_is_held_and_named():
    column = table_1(StepNet=70.2)
    a, _ = judge_plan([column], plan(range(5)))
    assert a.verdict == 'held'
    assert any('too small to matter' in line for line in a.evidence)


def test_a_plan_of_rows_that_are_not_there():
    with pytest.raises(ValueError, match="'A': table '1' has no column"):
        judge_plan([Column('1', 'X', {})], plan(range(5)))


def moon(ours, others, seeds=range(5, 15)):
    """Metric-attention with one module, and the dot product and L2."""
    rows = {'Metric-attention': ours, 'Dot product': others, 'L2': others}
    return Column('moon-printed', 'Moon', {f'{row}, 1 module': [
        dict(seed=seed, cfg_options=[],
             last=dict(epoch=9, metrics={'accuracy/top1': accuracy}),
             curves=dict(loss=[[8, 99.0], [9, loss]]))
        for seed, accuracy, loss in zip(seeds, *values)]
        for row, values in rows.items()})


def metric_plan():
    return METRIC_PLAN[:3]


RANDOM = np.random.default_rng(0).normal(size=(2, 10))


def test_accuracy_loss_and_variance_are_claims_of_their_own():
    column = moon((97 + RANDOM[0] / 9, 0.1 + RANDOM[0] / 99),
                  (85 + 3 * RANDOM[1], 0.3 + RANDOM[1] / 99))
    assert [f.verdict for f in judge_plan([column], metric_plan())] == [
        'held'] * 3
    swapped = moon((85 + 3 * RANDOM[1], 0.3 + RANDOM[1] / 99),
                   (97 + RANDOM[0] / 9, 0.1 + RANDOM[0] / 99))
    assert [f.verdict for f in judge_plan([swapped], metric_plan())] == [
        'refuted'] * 3
    few = moon((RANDOM[0], RANDOM[0]), (RANDOM[1], RANDOM[1]), range(4, 14))
    assert {f.verdict for f in judge_plan([few], metric_plan())} == {WAITING}


def test_the_loss_is_that_of_the_last_epoch():
    column = moon((RANDOM[0], 0.1 + RANDOM[0] / 99),
                  (RANDOM[1], 0.3 + RANDOM[0] / 99))
    loss = judge_plan([column], metric_plan())[1]
    assert loss.claim.quantity == LOSS
    assert [c.mean for c in loss.comparisons] == pytest.approx([0.2] * 2)


def test_rows_at_chance_have_no_variance():
    """They vary less than any, which counts; two of them are not compared."""
    column = moon((85 + 30 * RANDOM[0], RANDOM[0]), ([50.0] * 10, [0.7] * 10))
    assert judge_plan([column], metric_plan())[2].verdict == 'refuted'
    column = moon(([50.0] * 10, [0.7] * 10), ([50.0] * 10, [0.7] * 10))
    assert [f.verdict for f in judge_plan([column], metric_plan())] == [
        'undecided'] * 3


def test_variances_are_compared_by_distances_from_the_median():
    """Brown and Forsythe's test is an analysis of variance of these."""
    a, b = 3 * RANDOM[0], RANDOM[1, :7]
    found = VarianceComparison('', tuple(a), tuple(b), 7)
    x, y = (abs(v - np.median(v)) for v in (a, b))
    mean = np.concatenate([x, y]).mean()
    between = len(x) * (x.mean() - mean)**2 + len(y) * (y.mean() - mean)**2
    within = (((x - x.mean())**2).sum() + ((y - y.mean())**2).sum()) / 15
    assert found.p == pytest.approx(f.sf(between / within, 1, 15))
    assert found.mean == pytest.approx(
        sum((a - a.mean())**2) / 9 - sum((b - b.mean())**2) / 6)
    assert found.complete
    assert judge([found], None) == ('held' if found.p < 0.05 else 'undecided')


def test_every_claim_of_the_second_paper_is_made_on_every_row():
    kinds = [(p.claim.kind, p.claim.quantity) for p in METRIC_PLAN]
    assert kinds == [(DIFFERENCE, 'Accuracy'), (DIFFERENCE, LOSS),
                     (VARIANCE, 'Accuracy')] * 7
