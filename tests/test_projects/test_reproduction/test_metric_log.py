import json
from pathlib import Path

from mmengine.visualization import Visualizer

from projects.reproduction.metric_log import logged_losses, logged_metric


def write_log(work_dir, values, start='20260101_000000'):
    """Log scalars as mmengine's LoggerHook does, step -> dict."""
    log_dir = Path(work_dir, start)
    visualizer = Visualizer(
        vis_backends=[dict(type='LocalVisBackend')], save_dir=str(log_dir)
    )
    for step, scalars in values.items():
        visualizer.add_scalars(scalars, step=step, file_path=f'{start}.json')


def test_a_resumed_run_and_its_test(tmp_path):
    """The later start counts, a test has no step; a kill cut a line off.

    It counts also for the losses that the first had logged beyond it.
    """

    def entries(loss, *steps):
        return {s: dict(loss=loss, epoch=1 + (s > 10), iter=s) for s in steps}

    write_log(
        tmp_path,
        {1: {'m': 1.0}, 2: {'m': 7.0}, **entries(1.0, 15)},
        '20260102_000000',
    )
    write_log(
        tmp_path, {1: {'m': 1.0}, 2: {'m': 9.0}, **entries(4.0, 5, 10, 15, 20)}
    )
    for path in tmp_path.rglob('*.json'):
        path.write_text(path.read_text() + '{"m": 2.')
    (tmp_path / '20260102_000000' / '20260102_000000.json').write_text(
        json.dumps({'m': 8.5})
    )
    assert logged_metric(tmp_path, 'm') == {1: 1.0, 2: 7.0, 'test': 8.5}
    assert logged_metric(tmp_path, 'coco/bbox_mAP') == {}
    assert logged_losses(tmp_path) == {1: 4.0, 2: 1.0}
