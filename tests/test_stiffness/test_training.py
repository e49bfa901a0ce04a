"""Checkpoints of a training, and the interval of TNS."""

import os

import numpy as np
import pytest
from scipy.stats import bootstrap

from mmstepnet.cli import main
from mmstepnet.stiffness import (
    FIELDS,
    Trajectories,
    find_recordings,
    read_trainings,
)


def recording(seed, samples=30, **settings):
    generator = np.random.default_rng(seed)
    return Trajectories(
        **{name: generator.random((samples, 4)) for name in FIELDS},
        stages=[0, 0, 0, 0], blocks=list('abcd'), excluded=[],
        settings=dict(model='net', split='val', reading='adaptive',
                      dataset_size=samples, **settings))


@pytest.fixture
def work_dir(tmp_path):
    """Ten epochs, written in another order, and a test."""
    for epoch in (10, *range(1, 10)):
        recording(epoch, epoch=epoch, iter=7 * epoch).save(
            tmp_path / 'stiffness' / f'stiffness_val_epoch_{epoch}.npz')
    recording(0).save(tmp_path / 'stiffness' / 'stiffness_test.npz')
    os.utime(tmp_path / 'stiffness' / 'stiffness_val_epoch_10.npz', (9e9, 9e9))
    return tmp_path


def test_interval_is_that_of_scipy():
    found = recording(0, 200)
    nsi = found.unit.astype(float)
    each = (nsi.max(1) / nsi.mean(1) - 1) * nsi.max(1)
    expected = bootstrap((each, ), np.mean, method='percentile',
                         random_state=1).confidence_interval
    low, high = found.tns_interval('unit')
    assert (low, high) == found.tns_interval('unit')
    wide = expected.high - expected.low
    assert low == pytest.approx(expected.low, abs=0.08 * wide)
    assert high == pytest.approx(expected.high, abs=0.08 * wide)
    one = recording(0, 1)
    assert one.tns_interval() == (pytest.approx(one.tns()), ) * 2


def test_all_epochs_in_order(work_dir):
    files = find_recordings(work_dir)
    assert len(files) == 11 and files[-1].stem == 'stiffness_val_epoch_10'
    (name, training), = read_trainings(files, 'unit').items()
    assert name == 'net, val' and training.unit == 'epoch'
    assert [c.step for c in training.checkpoints] == list(range(1, 11))
    for checkpoint in training.checkpoints:
        wanted = recording(checkpoint.step)
        assert checkpoint.tns == wanted.tns('unit')
        np.testing.assert_array_equal(checkpoint.nsi, wanted.unit.mean(0))


def test_files_of_weights_in_the_order_given(tmp_path):
    paths = [tmp_path / f'{name}.npz' for name in ('late', 'early')]
    for path in paths:
        recording(0, weights=path.stem).save(path)
    training, = read_trainings(paths).values()
    assert [c.step for c in training.checkpoints] == ['late', 'early']


def test_other_models_and_folders_are_other_trainings(tmp_path):
    paths = [tmp_path / folder / f'stiffness_{epoch}.npz'
             for folder in 'xy' for epoch in (1, 2)]
    for k, path in enumerate(paths):
        recording(k, epoch=k % 2).save(path)
    assert [len(t.checkpoints) for t in read_trainings(paths).values()] == [
        2, 2]
    assert read_trainings(paths[::2]) == {}


def test_command_of_a_work_directory(work_dir, capsys):
    pytest.importorskip('plotly', reason='needs the figures')
    out = work_dir / 'page'
    assert main(['report', str(work_dir), '--out', str(out)]) == 0
    printed = capsys.readouterr().out
    low, high = recording(10).tns_interval()
    assert f'over samples  {low:.3f} to {high:.3f}' in printed
    assert f'by epoch: 1 {recording(1).tns():.3f}, 2 ' in printed
    assert 'Over training' in (out / 'stiffness_report.html').read_text()
    assert (out / 'training_01.png').is_file()
