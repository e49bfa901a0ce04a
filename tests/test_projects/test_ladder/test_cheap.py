"""The cheap ladder: its program on made-up pictures, and its verdicts."""

import json
import sys

import numpy as np
import pytest
import safetensors.torch
import torch
from scipy import stats

import mmstepnet
from projects.ladder.networks import CIFARResNet
from projects.ladder.rows import read_rows
from projects.recipes import ladder
from tests.documents import ROOT
from tests.utils import perturb, seeded

from .made_up import write_cifar10

NETWORK = 'resnet20'


def put(monkeypatch, **names):
    for name, value in names.items():
        monkeypatch.setattr(ladder, name, value)


def test_whole_program(monkeypatch, tmp_path, capsys):
    """Ten pictures to train with, on a network of random weights."""
    put(
        monkeypatch,
        PRETRAINED=(NETWORK,),
        RATES=(1e-4,),
        EPOCHS=1,
        SEEDS=range(2),
        TRAINED=1,
        SEARCHED=1,
        ALL=3,
        BATCH=5,
    )
    write_cifar10(tmp_path, train=1, test=3)
    model = perturb(CIFARResNet(20))
    safetensors.torch.save_file(
        model.state_dict(), tmp_path / f'{NETWORK}_cifar10.safetensors'
    )
    rows = tmp_path / 'rows'

    def call(command):
        monkeypatch.setattr(
            sys,
            'argv',
            ['ladder', command, '--data', str(tmp_path), '--rows', str(rows)],
        )
        ladder.main()
        return capsys.readouterr().out

    threads = torch.get_num_threads()
    try:
        first = call('run').splitlines()
        # What a kill has cut is made again, and the rest is left.
        path = rows / f'{NETWORK}.jsonl'
        path.write_bytes(path.read_bytes()[:-9])
        again = call('run').splitlines()
        assert call('replace') and not call('replace')
    finally:
        torch.set_num_threads(threads)
    found = list(read_rows(rows))
    assert [(row['rung'], row['seed']) for row in found] == [
        *((rung, 100) for rung in ladder.MAIN),
        *((rung, seed) for seed in (0, 1) for rung in ladder.MAIN),
    ]
    assert len(again) == 1
    assert again[0].rpartition(',')[0] == first[-1].rpartition(',')[0]
    for row in found[3:]:
        right = [
            int(digit) == k // 2 for k, digit in enumerate(row['answers'])
        ]
        assert row['accuracy'] == pytest.approx(100 * sum(right) / 20)
    assert found[3]['gates']['mean'] == pytest.approx(1, abs=0.5)
    # The same training: the same accuracy with its gates.
    replaced = list(read_rows(rows / 'replaced'))
    assert [row['seed'] for row in replaced] == [0, 1]
    for row, trained in zip(replaced, found[3::3]):
        assert row['attention'] == pytest.approx(trained['accuracy'])
    text = call('table')
    assert text.count(f'| {NETWORK} | stepnet − ') == 2
    assert 'not yet' not in text


def test_a_rung_has_the_rate_of_its_lowest_loss_once_all_are_tried():
    rows = [
        dict(
            network=network,
            rung='norms',
            seed=seed,
            rate=rate,
            loss=abs(rate - best),
        )
        for network, seed, best in (
            (NETWORK, 100, 1e-2),
            (NETWORK, 0, 1e-3),
            ('resnet32', 100, 1e-1),
        )
        for rate in ladder.RATES
    ]
    assert ladder.choose_rate(rows, NETWORK, 'norms') == 1e-2
    assert ladder.choose_rate(rows, 'resnet32', 'norms') == 1e-1
    assert ladder.choose_rate(rows[1:], NETWORK, 'norms') is None
    assert ladder.choose_rate(rows, NETWORK, 'stepnet') is None


def rungs_of(leads, generator):
    """Right answers of three rungs: the main ones are ahead of others."""
    ease = generator.random(400)
    return {
        name: ease < 0.7 + generator.normal(0, 0.02, (8, 400)) + lead
        for name, lead in zip(ladder.MAIN, (0, *(-x for x in leads)))
    }


def test_verdicts_of_the_plan(monkeypatch):
    """Recomputed from the formulas, for rows that are made up."""
    put(monkeypatch, SEARCHED=0, ALL=40)
    generator = np.random.default_rng(0)
    labels, rows, right = np.repeat(np.arange(10), 40), [], {}
    for network, leads in zip(
        ladder.PRETRAINED, ((0.1, 0.0), (-0.2, 0.0), (0.05, 0.0))
    ):
        right[network] = rungs_of(leads, generator)
        for name, answers in right[network].items():
            rows += [
                dict(
                    network=network,
                    rung=name,
                    seed=seed,
                    rate=0.1,
                    answers=''.join(
                        map(str, np.where(own, labels, (labels + 1) % 10))
                    ),
                )
                for seed, own in enumerate(answers)
            ]
    assert len(json.dumps(rows)) > 9 * 8 * 400
    lines = ladder.verdicts(rows)
    p_values = []
    for line, (network, other) in zip(
        lines,
        (
            (network, other)
            for network in ladder.PRETRAINED
            for other in ladder.MAIN[1:]
        ),
        strict=True,
    ):
        assert line[:2] == [network, f'stepnet − {other}']
        d = 100.0 * (
            right[network]['stepnet'].astype(int) - right[network][other]
        )
        a, b = (stats.sem(d.mean(axis)) ** 2 for axis in (1, 0))
        freedom = (a + b) ** 2 / (a**2 / 7 + b**2 / 399)
        t = stats.t(freedom, d.mean(), (a + b) ** 0.5)
        assert line[2] == f'{d.mean():+.2f}'
        assert line[3] == '{:+.2f} to {:+.2f}'.format(*t.interval(0.95))
        p_values.append(2 * min(t.cdf(0), t.sf(0)))
        assert float(line[4]) == pytest.approx(p_values[-1], rel=0.01)
    words = [line[5] for line in lines]
    assert words[0] == 'ahead' and words[2] == 'behind'
    assert sorted(p_values)[0] < 0.05 / 6
    # One row less, and nothing is told of any network.
    assert {line[5] for line in ladder.verdicts(rows[:-1])} == {'not yet'}


def test_lite0_is_split_in_front_of_its_first_step():
    timm = pytest.importorskip('timm')
    model = timm.create_model('tf_efficientnet_lite0', num_classes=10).eval()
    perturb(model)
    x = seeded(2, 3, 96, 96)
    with torch.no_grad():
        whole = model(x)
        stem = ladder.split(model)
        assert torch.equal(model(stem(x)), whole)
        blocks = mmstepnet.insert_steps(model, example=stem(x))
    assert len(blocks) == 9 and blocks[0] == 'blocks.1.1'


def test_a_resnet_has_no_stem():
    model = CIFARResNet(14)
    before = dict(model.named_modules())
    assert isinstance(ladder.split(model), torch.nn.Identity)
    assert dict(model.named_modules()) == before


def test_the_page_says_what_the_program_prints():
    page = (ROOT / 'projects' / 'recipes' / 'RESULTS.md').read_text('utf-8')
    lines = page.splitlines()
    for line in ladder.table().splitlines():
        assert line in lines, line


def test_what_the_readme_says_of_the_ladder():
    """Ahead of a constant in no network, behind the norms in two."""
    found = {
        (network, difference): verdict
        for network, difference, *_, verdict in ladder.verdicts(
            list(read_rows(ladder.ROWS))
        )
    }
    assert len(found) == 6 and 'not yet' not in found.values()
    assert not any(verdict.startswith('ahead') for verdict in found.values())
    behind = [key for key in found if found[key] == 'behind']
    assert [key[1] for key in behind].count('stepnet − norms') == 2
    assert len(behind) == 3
