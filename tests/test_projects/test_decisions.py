"""What the tables of projects/decisions make of rows, on rows by hand."""

import json

import pytest

pytest.importorskip('sklearn')
from projects.decisions import digits, placement  # noqa: E402


def test_a_run_diverges_as_the_plan_says():
    falling = [2.3 - 0.015 * k for k in range(150)]
    assert not digits.diverges(falling)
    assert digits.diverges([*falling, float('nan')])
    assert digits.diverges([2.3] * 150)                    # never learns
    assert digits.diverges([*falling, *[1.3] * 20])        # 1 above its best
    assert not digits.diverges([*falling, *[0.9] * 20])


def row(seed, diverges, **quantities):
    losses = [3.0 if diverges else 0.1] * 150
    names = dict(zip(('loss', 'norm', 'tns', 'nsi'), digits.QUANTITIES))
    seen = {name: [1.0] * 30 for name in digits.QUANTITIES}
    for name, values in quantities.items():
        seen[names[name]] = values
    return ['plain', '0.1', str(seed), json.dumps(losses), json.dumps(seen)]


def jump(k, size):
    return [1.0] * k + [size] + [1.0] * (29 - k)


def test_warnings_are_judged_on_runs_that_did_not_set_them():
    rows = [
        row(0, False, tns=jump(9, 4.0)),      # sets c of TNS
        row(1, True, tns=jump(9, 99.0)),      # neither sets nor counts
        row(5, False, loss=jump(9, 1.5)),     # a false alarm
        row(6, True, tns=jump(6, 3.0), loss=jump(8, 2.0)),  # TNS stays below c
        row(7, True, tns=jump(5, 5.0), loss=jump(8, 2.0)),
    ]
    lines = digits.alarms(rows).splitlines()
    assert '| loss | 1.00 | 1 of 1 | 2 of 2 | 45 |' in lines
    assert '| TNS | 4.00 | 0 of 1 | 1 of 2 | 30 |' in lines
    assert '| gradient norm | 1.00 | 0 of 1 | 0 of 2 | nan |' in lines
    # 1 of 2: Clopper and Pearson.
    assert 'first in 1 of 2 diverging runs (0.01 to 0.99)' in lines[-1]


def test_architectures_are_ranked_by_means_over_seeds():
    rows = []
    for k, name in enumerate(('8', '14', '20', '32')):
        for seed in range(2):
            noise = 0.9 * (-1)**seed
            scores = k**3, k + noise, k % 3, k * k, -k, k % 2, -k, k, 0.9
            rows.append([name, '16', 'SE', str(seed), *map(str, scores)])
    table = digits.ranks(rows)
    assert '| TNS, epoch 1 | 1.00 | 1.00 to 1.00 |' in table
    assert '| parameters | -1.00 | 1.00 to 1.00 |' in table
    assert '4 networks: 0.00 (0.00 to 0.00)' in table


def test_differences_leave_incomplete_seeds_out():
    rows = [[str(seed), name, choice, '80', str(loss + 0.1 * seed), '']
            for seed in (0, 1) for name in placement.NETWORKS
            for choice, loss in zip(placement.CHOICES, (1.0, 1.5, 1.25))]
    rows.append(['2', 'resnet20', 'stiffest', '80', '9', ''])
    first, second, *_ = placement.differences(rows)
    assert first.endswith('| stiffest − random | 2 | -0.2500 ± 0.0000 |')
    assert second.endswith('| stiffest − least stiff | 2 | -0.5000 ± 0.0000 |')
