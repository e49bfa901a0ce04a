"""Runs that a page shows, and the recordings that it finds."""

import os

from mmstepnet.figures.runs import same_blocks
from mmstepnet.stiffness import find_recordings
from tests.test_figures.conftest import changed


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
