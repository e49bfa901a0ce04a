"""Verdicts on results that are made to hold, to fail or to be too few."""

from itertools import count
from pathlib import Path

import numpy as np
import pytest

from mmstepnet.experiments import read_tables
from mmstepnet.experiments.claims import (
    LONG,
    OTHERS,
    PLAIN,
    REST,
    SE,
    SE_1,
    SHORT,
    SINGLE_INPUTS,
    STEPNET,
    STEPNET_1,
    STIFF,
    TABLE,
    judge_claims,
)

ROOT = Path(__file__).resolve().parents[2]
NOISE = np.random.default_rng(0).normal(0, 0.05, (4, 99))
STEPNETS = (STEPNET, *SINGLE_INPUTS, STEPNET_1, STIFF, REST)


def results(accuracy, tns=1.0, few=0.9, correlation=-0.4, seeds=4, place=0):
    return [
        dict(seed=seed,
             last=dict(metrics={'accuracy/top1': accuracy + noise}),
             stiffness=dict(
                 tns=tns + noise / 90, few_stiff=few, stages=[0, 0, 1],
                 correlation=[correlation + noise, None, 0.9]))
        for seed, noise in enumerate(NOISE[:seeds, place])
    ]


def suite(seeds=4, **levels):
    """Models in the order of accuracy and TNS, StepNet above them."""
    place = count()
    rows = {PLAIN: 70, **{row: 71 + i / 2 for i, row in enumerate(OTHERS)},
            SE_1: 75, STEPNET: 80, STEPNET_1: 80, STIFF: 80, REST: 74}
    rows |= dict.fromkeys(SINGLE_INPUTS, 77)
    rows |= levels
    made = {}
    for column in (SHORT, LONG):
        for row, accuracy in rows.items():
            made[column, row] = results(
                accuracy, tns=accuracy / 100, seeds=seeds, place=next(place))
    return made


def warm_starts(kept=75.0, plain=75.0, seeds=4):
    return [
        dict(config='net', seed=seed, plain=plain, epochs=1, lr=0.01, rows=[
            dict(attention=attention, init_step=step,
                 before=kept if step else 10 + seed,
                 after=76 + noise if step else 60)
            for attention in ('StepNet', 'SE') for step in (None, 1.0)])
        for seed, noise in enumerate(NOISE[:seeds, 98])
    ]



def test_all_hold():
    found = judge_claims(suite(), warm_starts())
    assert [v.verdict for v in found] == ['held'] * len(found)
    assert [v.claim[0] for v in found] == list('111123333445')


def test_none_without_results():
    found = judge_claims({}, [])
    assert {v.verdict for v in found} == {'no results yet'}


def test_two_seeds_decide_no_difference():
    found = judge_claims(suite(seeds=2), warm_starts(seeds=2))
    paired = [v for v in found if 'paired' in v.test]
    assert len(paired) == 9
    assert {v.verdict for v in paired} == {'not decidable at this scale'}


def verdict(claim, *args):
    found, = [v for v in judge_claims(*args) if v.claim.startswith(claim)]
    return found.verdict


@pytest.mark.parametrize('claim, levels, expected', [
    ('2.', {SINGLE_INPUTS[1]: 82}, 'not held'),
    ('2.', {SINGLE_INPUTS[1]: 80}, 'not decidable at this scale'),
    ('3b', {'ECA': 60}, 'not held'),
    ('4. Stiff', {REST: 83}, 'not held'),
    ('4. A few', {STIFF: 79.8}, 'held'),
    ('4. A few', {STIFF: 79}, 'not held'),
    ('4. A few', {STIFF: 69, STEPNET: 69}, 'not held'),
])
def test_one_row_decides(claim, levels, expected):
    assert verdict(claim, suite(**levels), []) == expected


def test_accuracy_against_stiffness():
    falling = suite()
    for row in (PLAIN, *OTHERS, STEPNET):
        for result in falling[SHORT, row]:
            result['stiffness']['tns'] *= -1
    assert verdict('3a', falling, []) == 'not held'
    random = suite()
    for i, row in enumerate((PLAIN, *OTHERS, STEPNET)):
        for result in random[SHORT, row]:
            result['stiffness']['tns'] = (i * 7) % 10
    assert verdict('3a', random, []) == 'not decidable at this scale'


def test_proportion_and_correlation():
    rows = suite()
    for row in (PLAIN, *OTHERS, STEPNET):
        rows[SHORT, row] = results(75, few=0.2)
    rows[SHORT, SE] = results(75, few=0.2, correlation=0.3)
    assert verdict('3c', rows, []) == 'not held'
    assert verdict('3d', rows, []) == 'not held'


def test_a_warm_start_that_loses_an_image():
    assert verdict('5', {}, warm_starts(kept=74.99)) == 'not held'


def test_rows_are_those_of_the_metafile():
    found = {(c.column, c.row) for c in read_tables(ROOT)[TABLE]}
    short = {PLAIN, *OTHERS, *STEPNETS, SE_1} - {STIFF, REST}
    assert {(SHORT, row) for row in short} <= found
    assert {(LONG, row) for row in (PLAIN, SE, STEPNET, STEPNET_1)} <= found
