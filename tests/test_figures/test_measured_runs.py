import os

import numpy as np
import pytest

from mmstepnet.figures.runs import same_blocks
from mmstepnet.stiffness import Trajectories, find_recordings
from projects.reproduction.measured_runs import find_accuracy, load_runs
from tests.test_figures.conftest import changed, write_log, write_record


def test_run_is_its_record(work_dirs):
    run, = load_runs(work_dirs[2:3], reading='unit')
    record = Trajectories.load(
        work_dirs[2] / 'stiffness' / 'stiffness_val_epoch_2.npz')
    assert run.label == run.model == work_dirs[2].name
    np.testing.assert_array_equal(run.nsi, record.unit)
    assert run.trajectories.excluded == ['layer1.0', 'layer2.0', 'layer3.0']
    assert run.tns == record.tns('unit')
    zeta = record.unit.astype(float)
    assert run.trajectories.stage_nsi(run.reading) == pytest.approx(
        [zeta[:, :2].mean(), zeta[:, 2:4].mean(), zeta[:, 4:].mean()])


def test_same_labels_are_seeds(work_dirs):
    runs = load_runs(work_dirs[:3], ['a', 'a', 'b'])
    assert [run.label for run in runs] == ['a (1)', 'a (2)', 'b']
    assert [run.model for run in runs] == ['a', 'a', 'b']
    sets = same_blocks(runs)
    assert [len(members) for members in sets.values()] == [2, 3]


def test_default_labels_differ(tmp_path):
    for model in ('a', 'b'):
        write_record(tmp_path / model / 'seed_0' / 'stiffness_x.npz', None, 0)
    runs = load_runs([tmp_path / 'a' / 'seed_0', tmp_path / 'b' / 'seed_0'])
    assert [run.label for run in runs] == ['a/seed_0', 'b/seed_0']
    rates = [tmp_path / 'net_lr0.1', tmp_path / 'net_lr0.5']
    for rate in rates:
        write_record(rate / 'stiffness_x.npz', None, 0)
    assert [run.model for run in load_runs(rates)] == [
        'net_lr0.1', 'net_lr0.5']


def test_runs_of_other_blocks_are_not_overlaid(runs):
    other = changed(runs[0], blocks=[f'x{i}' for i in range(6)])
    assert [len(m) for m in same_blocks([other, *runs]).values()] == [
        2, 2, 2, 1, 6]


def test_last_written_record_counts(tmp_path):
    for i, name in enumerate(('stiffness_val_epoch_10', 'stiffness_val_2')):
        path = tmp_path / name / f'{name}.npz'
        path.parent.mkdir()
        path.touch()
        os.utime(path, (1000 - i, 1000 - i))
    assert find_recordings(tmp_path)[-1].stem == 'stiffness_val_epoch_10'


class TestAccuracy:

    def test_epoch_of_the_record(self, work_dirs):
        record = find_recordings(work_dirs[0])[-1]
        found = find_accuracy(record, {'split': 'val', 'epoch': 1})
        assert (found.value, found.where) == (90, 'validation at 1')
        assert (found.highest, found.highest_step) == (90, 1)
        found = find_accuracy(record, {'split': 'val', 'epoch': 2})
        assert (found.value, found.highest) == (90 - 5 / 8, 90)

    def test_without_epoch_the_last(self, work_dirs):
        record = find_recordings(work_dirs[0])[-1]
        found = find_accuracy(record, {'split': 'test'})
        assert found.where == 'last validation, at 2'
        assert found.split == 'val'

    def test_measured_in_the_same_pass(self, work_dirs):
        found = find_accuracy(
            find_recordings(work_dirs[0])[-1],
            {'split': 'val', 'epoch': 1, 'metrics': {'accuracy/top1': 12.5}})
        assert (found.value, found.where) == (12.5, 'measured with the NSI')
        assert found.split == 'val'

    def test_named_metric(self, tmp_path):
        record = tmp_path / 'stiffness' / 'stiffness_val.npz'
        write_record(record, None, 0, epoch=1)
        write_log(tmp_path, {1: {'accuracy/top1': 5.0, 'coco/bbox_mAP': 0.3}})
        settings = {'split': 'val', 'epoch': 1}
        assert find_accuracy(record, settings).metric == 'accuracy/top1'
        found = find_accuracy(record, settings, 'coco/bbox_mAP')
        assert (found.metric, found.value) == ('coco/bbox_mAP', 0.3)

    def test_none(self, tmp_path):
        write_record(tmp_path / 'stiffness_val.npz', None, 0)
        assert load_runs([tmp_path])[0].accuracy is None


class TestErrors:

    def test_missing(self, tmp_path):
        with pytest.raises(FileNotFoundError, match='nowhere does not exist'):
            load_runs([tmp_path / 'nowhere'])

    def test_twice_the_same(self, work_dirs):
        with pytest.raises(ValueError, match='named by more than one run'):
            load_runs([work_dirs[0], find_recordings(work_dirs[0])[-1]])

    def test_labels(self, work_dirs):
        with pytest.raises(ValueError, match='2 runs need as many .* got 1'):
            load_runs(work_dirs[:2], ['a'])

    def test_reading(self, work_dirs):
        with pytest.raises(ValueError, match="adaptive, unit.* got 'own'"):
            load_runs(work_dirs[:1], reading='own')

    def test_none(self):
        with pytest.raises(ValueError, match='no run to show'):
            load_runs([])
