"""A row from a training and its test, and what an interruption leaves."""

import json
import subprocess

import pytest

from projects.reproduction import paper, runner
from projects.reproduction.rows import quantities
from projects.reproduction.tables import Cell
from tests.documents import ROOT
from tests.programs import call_tool

CONFIG = """
_base_ = ['{base}']
train_cfg = dict(max_epochs=2, val_interval=1)
train_dataloader = dict(num_workers=0, persistent_workers=False,
                        dataset=dict(indices=96))
val_dataloader = dict(num_workers=0, persistent_workers=False,
                      dataset=dict(indices=96))
test_dataloader = val_dataloader
"""


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
    """A config of 96 digits, trained for two epochs: its cell, its folder."""
    folder = tmp_path_factory.mktemp('runner')
    config = folder / 'tiny_digits.py'
    base = ROOT / 'configs' / 'digits' / 'resnet20_stepnet_digits.py'
    config.write_text(CONFIG.format(base=base))
    cell = Cell('digits', 'Tiny', 'Digits', ('Accuracy',), {}, config)
    runner.run(cell, 3, folder / 'work', folder / 'results')
    return cell, folder


def test_a_row(finished):
    cell, folder = finished
    row = json.loads((folder / 'results/tiny_digits/seed_3.json').read_text())
    assert (row['config'], row['seed']) == ('tiny_digits', 3)
    work = folder / 'work/tiny_digits/seed_3'
    assert row['last'] == dict(
        epoch=2, metrics=json.loads((work / 'test_metrics.json').read_text())
    )
    curve = dict(map(tuple, row['curves']['accuracy/top1']))
    # The test is the validation after the last epoch.
    assert curve[2] == pytest.approx(quantities(row)['Accuracy'], rel=1e-4)
    assert row['best']['metrics']['accuracy/top1'] == max(curve.values())
    assert list(dict(row['curves']['loss'])) == [1, 2]
    assert row['stiffness']['samples'] == 96
    assert row['starts'][0]['commit']


def test_what_is_done_is_not_done_again(finished, monkeypatch):
    """A row stands; without it the test alone runs again."""
    cell, folder = finished
    calls, call = [], runner.call
    monkeypatch.setattr(
        runner,
        'call',
        lambda tool, *args: calls.append(tool) or call(tool, *args),
    )
    runner.run(cell, 3, folder / 'work', folder / 'results')
    assert not calls
    path = folder / 'results/tiny_digits/seed_3.json'
    before = json.loads(path.read_text())
    path.unlink()
    runner.run(cell, 3, folder / 'work', folder / 'results')
    assert calls == ['test']
    assert json.loads(path.read_text()) == before


def test_an_interrupted_training_goes_on(finished, tmp_path, monkeypatch):
    """From its last checkpoint, and a failed one leaves no row."""
    cell, folder = finished
    calls = []

    def fail(tool, *args):
        calls.append((tool, *map(str, args)))
        raise subprocess.CalledProcessError(1, tool)

    monkeypatch.setattr(runner, 'call', fail)
    with pytest.raises(subprocess.CalledProcessError):
        runner.run(cell, 0, tmp_path / 'work', tmp_path / 'results', gpus=4)
    (command,) = calls
    assert command[0] == 'train' and '--resume' in command
    assert 'randomness.seed=0' in command
    assert not (tmp_path / 'results').exists()
    with pytest.raises(ValueError, match='cannot be shared by 7 GPUs'):
        runner.run(cell, 0, tmp_path / 'work', tmp_path / 'results', gpus=7)


def test_the_last_validation_may_be_the_test(finished):
    """One that a kill cut off, where both are of the same images."""
    cell, folder = finished
    metrics = {'accuracy/top1': 99.5}
    row = runner.collect(
        cell, folder / 'work/tiny_digits/seed_3', metrics, 3, True
    )
    assert row['best'] == dict(epoch=3, metrics=metrics)


def test_numbers_that_are_not_finite_are_no_row(tmp_path):
    with pytest.raises(ValueError, match='JSON compliant'):
        runner.write_row(tmp_path / 'row.json', dict(loss=float('nan')))
    assert not list(tmp_path.iterdir())


def test_list_and_table(capsys):
    call_tool(paper, 'list')
    assert '| resnet164_se_cifar10 |' in capsys.readouterr().out
    call_tool(paper, 'table', '1', 'se')
    assert (
        '| SE | 1.91 | 1.91 | 0.512 | 94.26 ± 0.14 | – |'
        in capsys.readouterr().out
    )
