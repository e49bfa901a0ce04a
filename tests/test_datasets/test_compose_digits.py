import os

import cv2
import numpy as np
import pytest
from mmengine.config import Config
from mmengine.registry import DefaultScope
from mmengine.runner import Runner
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from tests.documents import ROOT
from tests.programs import call_tool, run_tool

SETTINGS = ('--train', 4, '--val', 3, '--size', '64x72')
CONFIG = ROOT / 'configs' / '_base_' / 'datasets' / 'digits_detection.py'


def contents(folder):
    return {
        path.relative_to(folder): path.read_bytes()
        for path in sorted(folder.rglob('*')) if path.is_file()
    }


def test_files_follow_from_the_settings(tmp_path, composer, capsys):
    """In every process; a whole data set of the same is left as it is."""
    out, other = tmp_path / 'a', tmp_path / 'b'
    call_tool(composer, '--out', out, *SETTINGS)
    run_tool('tools/dataset_converters/compose_digits.py', '--out', other,
             *SETTINGS, PYTHONHASHSEED='7')
    assert contents(out) == contents(other)
    picture = out / 'train' / '000000.png'
    picture.write_bytes(b'mark')
    call_tool(composer, '--out', out, *SETTINGS)
    assert 'complete already' in capsys.readouterr().out
    assert picture.read_bytes() == b'mark'
    call_tool(composer, '--out', out, *SETTINGS, '--seed', 1)
    assert contents(out).keys() == contents(other).keys()
    assert contents(out)[picture.relative_to(out)] not in (
        b'mark', contents(other)[picture.relative_to(out)])
    call_tool(composer, '--out', out, *SETTINGS, '--size', '80x64')
    assert cv2.imread(str(picture)).shape == (80, 64, 3)
    assert sorted(os.listdir(tmp_path)) == ['a', 'b']


@pytest.mark.parametrize('split, count', [('train', 24), ('val', 30)])
def test_what_is_written_is_coco_and_is_what_a_runner_reads(
        digits_root, split, count):
    coco = COCO(digits_root / 'annotations' / f'instances_{split}.json')
    assert len(coco.imgs) == count < len(coco.anns)
    assert [c['name'] for c in coco.loadCats(coco.getCatIds())
            ] == list('0123456789')
    # What is annotated, handed in as detections, is found completely.
    found = coco.loadRes([
        dict(image_id=a['image_id'], category_id=a['category_id'],
             bbox=a['bbox'], score=1.0) for a in coco.anns.values()])
    evaluation = COCOeval(coco, found, 'bbox')
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    assert evaluation.stats[0] == pytest.approx(1)

    cfg = Config.fromfile(CONFIG)[f'{split}_dataloader']
    cfg.update(num_workers=0, persistent_workers=False)
    cfg.dataset.data_root = f'{digits_root}/'
    got = {}
    with DefaultScope.overwrite_default_scope('mmdet'):
        for batch in Runner.build_dataloader(cfg, seed=0):
            for image, sample in zip(batch['inputs'], batch['data_samples']):
                assert image.shape == (3, 128, 128)
                truth = sample.gt_instances
                got[sample.img_id] = list(zip(
                    truth.bboxes.tensor.tolist(), truth.labels.tolist()))
    assert got == {
        image: [([x, y, x + width, y + height], a['category_id'] - 1)
                for a in coco.loadAnns(coco.getAnnIds(imgIds=image))
                for x, y, width, height in [a['bbox']]]
        for image in coco.imgs}
    assert [] in got.values()  # empty pictures are trained with, too


def test_what_is_there_is_left_alone(tmp_path, composer, monkeypatch):
    """By a tool that is interrupted, and where it is another's.

    A split is composed of its own digits.
    """
    out = tmp_path / 'data'
    call_tool(composer, '--out', out, *SETTINGS)
    before = contents(tmp_path)

    def interrupt(seed, digits, *args):
        assert len(digits) == (1437, 360)[seed[1]]
        if seed[1:] == (1, 2):
            raise KeyboardInterrupt
        return np.zeros((64, 64, 3), np.uint8), np.empty((0, 4)), np.empty(0)

    monkeypatch.setattr(composer, 'compose', interrupt)
    for folder in (out, tmp_path / 'new'):
        with pytest.raises(KeyboardInterrupt):
            call_tool(composer, '--out', folder, *SETTINGS, '--seed', 3)
        assert contents(tmp_path) == before
    (out / 'compose_digits.json').write_text('{"mine": 1}')
    with pytest.raises(SystemExit, match='no data set of this tool'):
        call_tool(composer, '--out', out, *SETTINGS)
