"""The ladder for a GPU, dry: on the CPU, with pictures made up."""

import math
import time

import numpy as np
import pytest
import torch

from projects.ladder import gpu, scratch
from projects.ladder.gpu import Run
from projects.ladder.networks import untrained
from projects.ladder.rows import append_row, read_rows

from .made_up import pictures

CPU = torch.device('cpu')


@pytest.fixture
def small(monkeypatch):
    """Few epochs, rates and seeds, and eight pixels in place of 32."""
    for name, value in dict(
        NETWORKS=('resnet14',),
        LENGTHS=(2,),
        RATES=(0.05, 0.1),
        SEARCH_SEEDS=range(100, 102),
        SEEDS=range(2),
        BATCH=20,
    ).items():
        monkeypatch.setattr(gpu, name, value)
    monkeypatch.setattr(
        scratch, 'prepare', lambda pixels: pixels[:, :, ::4, ::4].float() / 255
    )
    gpu.place.cache_clear()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    gpu.place.cache_clear()


def made_up():
    pixels, labels = pictures(60)
    order = labels.argsort(stable=True)
    return gpu.Pictures(
        (pixels[order], labels[order]), pictures(30, seed=1), CPU
    )


def run_missing(folder, minutes=math.inf):
    gpu.run_missing(
        gpu.NETWORKS,
        ['stepnet', 'plain'],
        made_up(),
        folder / 'rows',
        folder / 'kept',
        time.monotonic() + 60 * minutes,
    )
    return list(read_rows(folder / 'rows'))


def test_dry_run(small, tmp_path):
    rows = run_missing(tmp_path)
    assert run_missing(tmp_path) == rows
    assert list((tmp_path / 'kept').glob('*')) == []
    searched = [row for row in rows if row['seed'] >= 100]
    final = [row for row in rows if row['seed'] < 100]
    assert rows == searched + final
    assert [(row['seed'], row['rung']) for row in final] == [
        (0, 'stepnet'),
        (0, 'plain'),
        (1, 'stepnet'),
        (1, 'plain'),
    ]
    for row in final:
        right = np.array([*map(int, row['answers'])]) == np.arange(30) % 10
        assert row['accuracy'] == 100 * right.sum() / 30
        assert row['dtype'] == 'bfloat16' and row['device'] == 'cpu'
    assert all('answers' not in row for row in searched)
    assert final[0]['body'] == final[1]['body'] != final[2]['body']
    text = gpu.table(tmp_path / 'rows')
    mean = np.mean([row['accuracy'] for row in final[::2]])
    assert (
        f'| resnet14 | stepnet | {final[0]["numbers"]:,} | 2 | {mean:.2f} ± '
    ) in text
    assert '| resnet14 | 2 | 0.' in text and 'not yet' not in text


def test_a_run_that_ran_out_of_time_goes_on_to_the_bit(small, tmp_path):
    run = Run('resnet14', 'stepnet', 3, 0.1, 0)
    shown, _ = made_up().of(run)

    def train(name, deadline):
        return gpu.train(run, shown, CPU, tmp_path / name, deadline)

    model, _ = train('whole', math.inf)
    wanted = {key: value.clone() for key, value in model.state_dict().items()}
    for _ in range(3):
        assert train('stopped', 0.0) is None
    model, _ = train('stopped', 0.0)  # nothing is left to be trained
    torch.testing.assert_close(
        dict(model.state_dict()), wanted, rtol=0, atol=0
    )


def test_a_run_that_diverges_has_a_row(small, tmp_path):
    run = Run('resnet14', 'stepnet', 2, 1e30, 100)
    row = gpu.measure(run, made_up(), tmp_path, math.inf)
    append_row(tmp_path / 'rows.jsonl', row)
    assert row['loss'] is None and 'gates' not in row


def test_no_run_begins_when_the_time_is_over(small, tmp_path, capsys):
    assert run_missing(tmp_path, minutes=-1) == []
    assert 'the same command goes on' in capsys.readouterr().out


def simulate(accuracy, loss):
    """All runs of a network, with rows that two functions make up."""
    rows = {}
    for run in gpu.plan_runs(rows, 'resnet20', ['stepnet', 'plain']):
        rows.setdefault(run, dict(accuracy=accuracy(run), loss=loss(run)))
    return list(rows)


def test_the_length_is_that_after_which_half_as_much_gains_little():
    gains = {20: 85.0, 30: 88.0, 45: 89.0, 68: 89.25, 102: 95.0, 153: 99.0}
    runs = simulate(
        lambda run: gains[run.epochs] + (run.seed - 101) / 10,
        lambda run: abs(run.rate - 0.2),
    )
    assert {run.epochs for run in runs} == {20, 30, 45, 68}
    final = [run for run in runs if not run.is_search]
    assert final == [
        Run('resnet20', rung, 45, 0.2, seed)
        for seed in range(12)
        for rung in ('stepnet', 'plain')
    ]
    # Plain's rates at its length are not tried again for its rung.
    assert len(runs) == 4 * (5 + 2) + 5 + 24


def test_the_longest_is_taken_where_each_gains():
    runs = simulate(lambda run: run.epochs / 2, lambda run: run.rate)
    assert {run.epochs for run in runs if not run.is_search} == {153}


def test_each_rung_has_the_rate_of_its_lowest_loss():
    """A training that diverged has no loss, and is not taken."""
    best = dict(stepnet=0.1, plain=0.4)
    runs = simulate(
        lambda run: 90.0,
        lambda run: None if run.rate > 0.5 else abs(run.rate - best[run.rung]),
    )
    for run in runs:
        assert run.is_search or run.rate == best[run.rung]


def test_held_out_pictures_are_not_trained_with():
    found = made_up()
    search, final = (
        Run('resnet20', 'plain', 2, 0.1, seed) for seed in (100, 0)
    )
    (most, _), (held_out, labels) = found.of(search)
    (everything, _), (tested, _) = found.of(final)
    assert labels.tolist() == list(range(10))  # a tenth of six is one
    assert len(most) == 50 and len(everything) == 60
    both = {
        tuple(picture.flatten().tolist())
        for picture in torch.cat([most, held_out])
    }
    assert len(both) == 60
    assert torch.equal(tested, pictures(30, seed=1)[0])


def test_pictures_are_mirrored_in_turn():
    """And order and crops are the seed's, whatever the rung."""
    columns = torch.arange(32, dtype=torch.uint8)
    pixels = (100 + columns).expand(40, 3, 32, 32)
    seed = gpu.Seed(Run('resnet14', 'stepnet', 4, 0.1, 0))
    other = gpu.Seed(Run('resnet14', 'plain', 4, 0.2, 0))
    mirrored, orders = [], []
    for epoch in range(4):
        crops, order = seed.draw_epoch((pixels, torch.arange(40)), epoch)
        again = other.draw_epoch((pixels, torch.arange(40)), epoch)
        assert torch.equal(crops, again[0]) and torch.equal(order, again[1])
        falls = crops[:, 0, 16, 16] > crops[:, 0, 16, 17]
        mirrored.append(falls[order.argsort()])
        orders.append(order)
        assert torch.equal(order.sort().values, torch.arange(40))
    assert 10 < mirrored[0].sum() < 30
    for one, two in zip(mirrored, mirrored[1:]):
        assert torch.equal(one, ~two)
    assert not torch.equal(orders[0], orders[1])


def test_the_rate_is_a_triangle():
    rates = [gpu.rate_at(step, 100, 0.4) for step in range(100)]
    np.testing.assert_allclose(np.diff(rates[:20]), 0.4 / 20)
    np.testing.assert_allclose(np.diff(rates[20:]), -0.4 / 80)
    assert max(rates) < 0.4 and rates[0] == pytest.approx(0.01)
    assert rates[-1] == pytest.approx(0.0025)


def test_resnet18_looks_at_32_pixels():
    """As in its many trainings on CIFAR-10: 11.17 million parameters."""
    model = untrained('resnet18')
    assert sum(p.numel() for p in model.parameters()) == 11_173_962
    shapes = []
    model.layer1.register_forward_hook(
        lambda module, args, out: shapes.append(out.shape)
    )
    model.eval()(torch.zeros(1, 3, 32, 32))
    assert shapes == [(1, 64, 32, 32)]
    assert scratch.blocks_of('resnet18') == [
        'layer1.0',
        'layer1.1',
        'layer2.1',
        'layer3.1',
        'layer4.1',
    ]
