"""The ladder from scratch: what rungs share, how a run goes on."""

import json
import math
import sys

import numpy as np
import pytest
import torch
from scipy import stats
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR

from mmstepnet.attentions import Attention
from mmstepnet.stiffness import measure_gates
from projects.ladder import scratch
from projects.ladder.rows import describe_program, read_rows
from projects.ladder.rungs import FROM_SCRATCH

from .made_up import pictures, write_cifar10

SMALL = 'resnet14'
"""Two blocks a stage; four of them carry gates."""


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def small(monkeypatch):
    """Eight pixels in place of 32, which cost less."""
    monkeypatch.setattr(
        scratch, 'prepare', lambda pixels: pixels[:, :, ::4, ::4].float() / 255
    )


def build(seed, name):
    """The network of a rung, and what is trained of it."""
    return scratch.build_rung(seed.network, seed.body, seed.number, name)


def digest(seed):
    return scratch.digest(seed.body)


def test_rungs_stand_in_the_seven_blocks_of_identity_shortcuts():
    assert scratch.blocks_of('resnet20') == [
        'layer1.0',
        'layer1.1',
        'layer1.2',
        'layer2.1',
        'layer2.2',
        'layer3.1',
        'layer3.2',
    ]


def test_the_main_rungs_compute_the_same_at_the_start():
    """In training, where BN takes the statistics of the batch."""
    seed = scratch.Seed(0, 50_000)
    x = scratch.prepare(pictures(8)[0])
    scores = {
        name: build(seed, name)[0](x).double()
        for name in (*scratch.MAIN, 'plain')
    }
    first = scores['stepnet']
    for name in scratch.MAIN[1:]:
        # Float32 has 2**-24 a rounding; some hundred of them, twenty layers.
        assert (scores[name] - first).abs().max() < 1e-4 * first.abs().max()
    assert (scores['plain'] - first).abs().max() > 0.1 * first.abs().max()


@pytest.mark.parametrize('name', FROM_SCRATCH)
def test_every_rung_is_given_the_body_of_its_seed(name):
    """To the bit, but for γ of the last norms; and all of it is trained."""
    seed = scratch.Seed(3, 300)
    model, parameters = build(seed, name)
    start = FROM_SCRATCH[name]
    found = dict(model.state_dict())
    blocks = scratch.blocks_of('resnet20')
    for key, value in seed.body.items():
        if key in [f'{block}.bn2.weight' for block in blocks]:
            value = torch.full_like(value, start.norms)
        assert torch.equal(found[key], value), key
    trained = {
        key
        for key, p in model.named_parameters()
        if any(p is one for one in parameters)
    }
    assert trained == {
        key for key, p in model.named_parameters() if p.requires_grad
    }
    gates = {key for key in trained if '.attention.' in key}
    body = {
        key
        for key in seed.body
        if 'running' not in key and 'batches' not in key
    }
    assert trained - gates == body
    if name == 'sigmoid-bias':
        assert gates == {f'{b}.step.attention.ie_bias' for b in blocks}
    else:
        assert gates == {
            key for key, _ in model.named_parameters() if '.attention.' in key
        }
    assert bool(gates) == (start.gates.attention is not None)


def test_gates_take_nothing_from_what_a_seed_draws():
    """Order and crops are those of the seed, whatever was drawn before."""
    first = scratch.Seed(5, 300)
    build(first, 'se-half')
    torch.rand(3)
    again = scratch.Seed(5, 300)
    assert digest(first) == digest(again) != digest(scratch.Seed(6, 300))
    assert all(map(torch.equal, first.batches, again.batches))
    assert torch.equal(first.crops, again.crops)
    for epoch in np.split(np.arange(15), 5):
        order = torch.cat([first.batches[k] for k in epoch])
        assert torch.equal(order.sort().values, torch.arange(300))
    gates = [build(first, 'stepnet')[0].state_dict() for _ in range(2)]
    assert all(torch.equal(gates[0][key], gates[1][key]) for key in gates[0])


def given(monkeypatch, name, seed, tmp_path, trained):
    """What a rung's network is given in training."""
    batches = []

    def prepare(pixels):
        batches.append(pixels.clone())
        return pixels[:, :, ::4, ::4].float() / 255

    monkeypatch.setattr(scratch, 'prepare', prepare)
    model, parameters = build(seed, name)
    scratch.train(model, parameters, seed, trained, tmp_path / name, {})
    return batches


def test_every_rung_sees_the_same_pictures(monkeypatch, tmp_path):
    trained, seed = pictures(150), scratch.Seed(0, 150, SMALL)
    shown = [
        given(monkeypatch, name, seed, tmp_path, trained)
        for name in scratch.MAIN
    ]
    assert len(shown[0]) == 10
    for batches in shown[1:]:
        assert all(map(torch.equal, shown[0], batches))
    assert not torch.equal(shown[0][0][:22], trained[0][seed.batches[0]][:22])


def test_the_rate_is_that_of_pytorchs_schedules():
    """Of the small suite: LinearLR for an epoch, then CosineAnnealingLR."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=scratch.RATE)
    rates = []
    for schedule, steps in (
        (LinearLR(optimizer, 0.01, total_iters=390), 391),
        (CosineAnnealingLR(optimizer, 4 * 391), 4 * 391),
    ):
        for _ in range(steps):
            rates.append(optimizer.param_groups[0]['lr'])
            optimizer.step()
            schedule.step()
        optimizer.param_groups[0]['lr'] = scratch.RATE
    np.testing.assert_allclose(
        [scratch.rate_at(step, 391, 1955) for step in range(1955)],
        rates,
        rtol=1e-9,
        atol=1e-15,
    )


class KilledError(Exception):
    pass


def test_a_killed_run_goes_on_to_the_bit(small, monkeypatch, tmp_path):
    """In the middle of an epoch, two steps after it was kept."""
    monkeypatch.setattr(scratch, 'KEPT_EVERY', 5)
    seed, trained, tested = (
        scratch.Seed(1, 300, SMALL),
        pictures(300),
        pictures(40, seed=1),
    )
    program = describe_program()

    def run(folder, program=program):
        row = scratch.run(seed, 'stepnet', trained, tested, folder, program)
        state = torch.load(folder / 'stepnet_01.pt')
        del row['seconds'], state['seconds'], state['program']
        return row, state

    row, state = run(tmp_path / 'whole')
    draw, calls = scratch.draw_crops, []

    def draw_until_killed(*args):
        calls.append(args)
        if len(calls) == 13:  # of fifteen; the tenth was kept
            raise KilledError
        return draw(*args)

    monkeypatch.setattr(scratch, 'draw_crops', draw_until_killed)
    with pytest.raises(KilledError):
        run(tmp_path / 'killed')
    again, resumed = run(tmp_path / 'killed')
    assert len(calls) == 13 + 5
    assert again == row
    torch.testing.assert_close(resumed, state, rtol=0, atol=0)
    assert row['gates']['over_images'] > 0
    # Killed between its last step and its row: only tested again.
    assert run(tmp_path / 'killed')[0] == row and len(calls) == 18
    # What another commit began is begun anew.
    other = run(tmp_path / 'killed', dict(program, commit='four'))[0]
    assert other == dict(row, commit='four') and len(calls) == 18 + 15


def test_a_row_counts_what_its_network_answers(small, tmp_path):
    seed = scratch.Seed(0, 40, SMALL)
    tested = pictures(300, seed=1)
    row = scratch.run(seed, 'stepnet', pictures(40), tested, tmp_path, {})
    right = np.array([*map(int, row['answers'])]) == tested[1].numpy()
    assert row['accuracy'] == 100 * right.sum() / 300
    model, parameters = build(seed, 'stepnet')
    model.load_state_dict(torch.load(tmp_path / 'stepnet_00.pt')['model'])
    with torch.no_grad():
        scores = model.eval()(scratch.prepare(tested[0])).double()
    loss = -scores.log_softmax(1)[torch.arange(300), tested[1]].mean()
    assert row['loss'] == pytest.approx(float(loss), rel=1e-4)
    assert row['numbers'] == sum(p.numel() for p in parameters)
    # The package's own measurement, by another way.
    found = measure_gates(model, [scratch.prepare(tested[0])])
    assert len(found.mean) == 4
    for key in ('mean', 'over_images'):
        assert row['gates'][key] == pytest.approx(
            np.mean([*getattr(found, key).values()]), rel=1e-3
        )


def test_gates_are_replaced_in_the_weights_that_are_kept(small, tmp_path):
    trained, tested = pictures(150), pictures(300, seed=1)
    seed = scratch.Seed(2, 150, SMALL)
    rows, kept = tmp_path / 'rows', tmp_path / 'kept'
    row = scratch.run(seed, 'stepnet', trained, tested, kept, {})
    scratch.append_row(rows / 'seed_02.jsonl', row)
    for seeds in ([1], [2], [1, 2]):
        scratch.run_replaced(seeds, trained, tested, rows, kept, SMALL)
    (found,) = read_rows(rows / 'replaced')
    assert found['seed'] == 2
    assert found['attention'] == pytest.approx(row['accuracy'])
    assert len([key for key in found if key.endswith('BN again')]) == 3
    assert [*read_rows(rows)] == [row]


def test_training_is_in_bfloat16_and_tests_are_not(small, tmp_path):
    trained, seed = pictures(40), scratch.Seed(0, 40, SMALL)
    model, parameters = build(seed, 'stepnet')
    types = {True: set(), False: set()}
    model.layer1.register_forward_hook(
        lambda module, _, x: types[module.training].add(x.dtype)
    )
    scratch.train(model, parameters, seed, trained, tmp_path / 'kept', {})
    scratch.test(model, trained)
    assert types == {True: {torch.bfloat16}, False: {torch.float32}}
    assert {p.dtype for p in parameters} == {torch.float32}


def test_commands(monkeypatch, tmp_path, capsys):
    """Ten pictures; a second call of a command has nothing to do."""
    write_cifar10(tmp_path, train=1, test=1)
    folders = [
        f'--data={tmp_path}',
        f'--rows={tmp_path / "rows"}',
        f'--work-dir={tmp_path / "kept"}',
    ]

    def call(command, *options):
        monkeypatch.setattr(
            sys, 'argv', ['scratch', command, *folders, *options]
        )
        scratch.main()
        return capsys.readouterr().out

    run = 'run', '--seeds', '4', '--rungs', 'stepnet'
    assert call(*run).startswith('stepnet seed 4: ')
    assert "'seed': 4" in call('replace')
    assert call(*run) == call('replace') == ''
    assert '| stepnet | ' in call('table')


@pytest.mark.parametrize(
    'name, mean',
    [
        ('stepnet', 1 / (1 + math.e)),
        ('sigmoid-bias', 1 / (1 + math.e)),
        ('layer-scale-half', 0.5),
        ('se-half', 0.5),
    ],
)
def test_gates_start_where_the_plan_says(small, name, mean):
    model, _ = build(scratch.Seed(0, 1, SMALL), name)
    gates = scratch.test(model, pictures(6))['gates']
    assert gates['mean'] == pytest.approx(mean, rel=1e-6)
    assert gates['over_images'] < 1e-6
    assert sum(isinstance(m, Attention) for m in model.modules()) == 4


def test_rows_of_a_seed_come_from_one_program(small, monkeypatch, tmp_path):
    monkeypatch.setattr(scratch.Seed.__init__, '__defaults__', (SMALL,))

    def run(commit, rungs, *seeds):
        monkeypatch.setattr(
            scratch,
            'describe_program',
            lambda: dict(cpu='one', torch='two', commit=commit),
        )
        scratch.run_missing(
            rungs,
            seeds,
            pictures(20),
            pictures(20),
            tmp_path / 'rows',
            tmp_path / 'kept',
        )

    run('a', ['plain', 'norms-half'], 0)
    run('a', ['plain', 'norms-half'], 0)  # nothing is missing
    run('b', ['plain', 'norms-half'], 0)  # nor here
    with pytest.raises(
        ValueError,
        match="seed 0 were made by .*'commit': 'a'"
        ".*and this is .*'commit': 'b'.*run other seeds",
    ):
        run('b', ['se-half'], 0)
    run('b', ['plain'], 1)
    assert [
        (row['seed'], row['rung'], row['commit'])
        for row in read_rows(tmp_path / 'rows')
    ] == [(0, 'plain', 'a'), (0, 'norms-half', 'a'), (1, 'plain', 'b')]


def write_rows(folder, seeds, **accuracies):
    """Rows of simulated accuracies, by rung."""
    folder.mkdir(exist_ok=True)
    (folder / 'rows.jsonl').write_text(
        ''.join(
            json.dumps(
                dict(
                    rung=rung.replace('_', '-'),
                    seed=seed,
                    accuracy=values[seed],
                    loss=1.0,
                    numbers=9,
                    seconds=600,
                )
            )
            + '\n'
            for rung, values in accuracies.items()
            for seed in seeds
        )
    )


NOISE = np.random.default_rng(0).normal(0, 0.3, 12)
NOISE -= NOISE.mean()


@pytest.mark.parametrize(
    'bias, norms, words',
    [
        (74.0, 75.0, ('ahead', 'worth less than 0.5 points')),
        (76.5, 74.7, ('behind', 'ahead, by less than 0.5 points')),
        (75.0, 75.0, ('worth less than 0.5 points',) * 2),
    ],
)
def test_verdicts_of_the_plan(tmp_path, bias, norms, words):
    means = dict(
        stepnet=75 + NOISE / 2,
        sigmoid_bias=bias - NOISE / 2,
        norms_start=norms - NOISE / 4,
    )
    write_rows(tmp_path, range(12), **means)
    lines = [
        line.split(' | ') for line in scratch.table(tmp_path).splitlines()[2:4]
    ]
    assert [line[-1].strip(' |') for line in lines] == list(words)
    for line, name in zip(lines, ('sigmoid_bias', 'norms_start')):
        d = means['stepnet'] - means[name]
        t = stats.ttest_rel(means['stepnet'], means[name])
        assert line[1] == '12' and line[2] == f'{d.mean():+.2f}'
        for column, level in ((3, 0.975), (4, 0.9)):
            low, high = t.confidence_interval(level)
            assert line[column] == f'{low:+.2f} to {high:+.2f}'
        assert float(line[5]) == pytest.approx(t.pvalue, rel=0.01)


def test_there_is_one_look(tmp_path):
    """Nothing of a main difference is told before it."""
    accuracy = dict(
        stepnet=75 + NOISE, sigmoid_bias=74 - NOISE, norms_start=73 + 2 * NOISE
    )
    write_rows(tmp_path, range(11), **accuracy)
    text = scratch.table(tmp_path)
    assert text.count('| 11 |  |  |  |  | not yet |') == 2
    ended = scratch.table(tmp_path, is_ended=True)
    assert 'not yet' not in ended
    d = (accuracy['stepnet'] - accuracy['sigmoid_bias'])[:11]
    assert f'| stepnet − sigmoid-bias | 11 | {d.mean():+.2f} |' in ended
