import json

import pytest

from projects.reproduction.metric_log import logged_metric, logged_names
from tests.test_figures.conftest import write_log


def test_values_by_step(tmp_path):
    write_log(tmp_path, {1: {'accuracy/top1': 50.0, 'time': 0.1},
                         2: {'accuracy/top1': 60.0}})
    assert logged_metric(tmp_path, 'accuracy/top1') == {1: 50.0, 2: 60.0}
    assert logged_metric(tmp_path, 'coco/bbox_mAP') == {}
    assert {'accuracy/top1', 'time'} <= set(logged_names(tmp_path))


def test_resumed_run_counts_later_start(tmp_path):
    write_log(tmp_path, {1: {'m': 1.0}, 2: {'m': 7.0}}, '20260102_000000')
    write_log(tmp_path, {1: {'m': 1.0}, 2: {'m': 9.0}}, '20260101_000000')
    assert logged_metric(tmp_path, 'm') == {1: 1.0, 2: 7.0}


def test_test_result_has_no_step(tmp_path):
    start = tmp_path / '20260103_000000'
    start.mkdir()
    (start / f'{start.name}.json').write_text(
        json.dumps({'accuracy/top1': 80.5}))
    write_log(tmp_path, {3: {'accuracy/top1': 81.0}})
    assert logged_metric(tmp_path, 'accuracy/top1') == {3: 81.0, 'test': 80.5}


def test_line_of_killed_run_is_left_out(tmp_path):
    write_log(tmp_path, {1: {'m': 1.0}})
    for path in tmp_path.rglob('*.json'):
        path.write_text(path.read_text() + '{"m": 2.')
    assert logged_metric(tmp_path, 'm') == {1: 1.0}


@pytest.mark.parametrize('value', ['NaN', 'Infinity', '"high"'])
def test_no_finite_number(tmp_path, value):
    vis_data = tmp_path / '20260101_000000' / 'vis_data'
    vis_data.mkdir(parents=True)
    (vis_data / 'scalars.json').write_text(f'{{"m": {value}, "step": 1}}\n')
    with pytest.raises(ValueError, match='scalars.json: m is .*--metric'):
        logged_metric(tmp_path, 'm')
