import os

import cv2
import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from tests.programs import run_tool

SETTINGS = ('--train', 4, '--val', 3, '--size', '64x72')


def contents(folder):
    return {
        path.relative_to(folder): path.read_bytes()
        for path in sorted(folder.rglob('*')) if path.is_file()
    }


def test_equal_settings_give_equal_files_in_other_processes(
        tmp_path, call_tool):
    call_tool('--out', tmp_path / 'a', *SETTINGS)
    run_tool('tools/dataset_converters/compose_digits.py', '--out',
             tmp_path / 'b', *SETTINGS, PYTHONHASHSEED='7')
    assert contents(tmp_path / 'a') == contents(tmp_path / 'b')
    call_tool('--out', tmp_path / 'c', *SETTINGS, '--seed', 1)
    assert contents(tmp_path / 'a') != contents(tmp_path / 'c')


@pytest.mark.parametrize('split, count', [('train', 24), ('val', 30)])
def test_annotations_are_valid_coco(digits_root, split, count):
    coco = COCO(digits_root / 'annotations' / f'instances_{split}.json')
    assert len(coco.imgs) == count
    assert [c['name'] for c in coco.loadCats(coco.getCatIds())
            ] == list('0123456789')
    for image in coco.imgs.values():
        path = digits_root / split / image['file_name']
        assert cv2.imread(str(path)).shape == (128, 128, 3)
    assert any(not coco.getAnnIds(imgIds=i) for i in coco.imgs)
    assert len(coco.anns) > count
    # What is annotated, handed in as detections, is found completely.
    found = coco.loadRes([
        dict(image_id=a['image_id'], category_id=a['category_id'],
             bbox=a['bbox'], score=1.0) for a in coco.anns.values()])
    evaluation = COCOeval(coco, found, 'bbox')
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    assert evaluation.stats[0] == pytest.approx(1)


def test_splits_are_composed_of_different_digits(
        tmp_path, call_tool, composer_tool, monkeypatch):
    pools = {}
    compose = composer_tool.compose

    def record(seed, digits, labels, size):
        pools[len(digits)] = {digit.tobytes() for digit in digits}
        return compose(seed, digits, labels, size)

    monkeypatch.setattr(composer_tool, 'compose', record)
    call_tool('--out', tmp_path / 'data', *SETTINGS)
    train, val = pools[1437], pools[360]
    assert len(pools) == 2 and not train & val
    assert len(train | val) == 1797


def test_complete_data_are_kept(tmp_path, call_tool, capsys):
    out = tmp_path / 'data'
    call_tool('--out', out, *SETTINGS)
    picture = out / 'train' / '000000.png'
    picture.write_bytes(b'mark')
    call_tool('--out', out, *SETTINGS)
    assert 'complete already' in capsys.readouterr().out
    assert picture.read_bytes() == b'mark'


def test_other_settings_are_composed_anew(tmp_path, call_tool):
    out = tmp_path / 'data'
    call_tool('--out', out, *SETTINGS)
    call_tool('--out', out, *SETTINGS, '--size', '80x64')
    assert cv2.imread(str(out / 'val' / '000000.png')).shape == (80, 64, 3)
    assert os.listdir(tmp_path) == ['data']


@pytest.mark.parametrize('data_before', [False, True])
def test_interrupted_tool_leaves_what_was_there(
        tmp_path, call_tool, composer_tool, monkeypatch, data_before):
    out = tmp_path / 'data'
    if data_before:
        call_tool('--out', out, *SETTINGS)
    before = contents(tmp_path)

    def interrupt(seed, *args):
        if seed[-1] == 2:
            raise KeyboardInterrupt
        return np.zeros((64, 64, 3), np.uint8), np.empty((0, 4)), np.empty(0)

    monkeypatch.setattr(composer_tool, 'compose', interrupt)
    with pytest.raises(KeyboardInterrupt):
        call_tool('--out', out, *SETTINGS, '--seed', 3)
    assert contents(tmp_path) == before
    assert out.exists() == data_before


@pytest.mark.parametrize('name, text', [
    ('notes.txt', 'mine'),
    ('compose_digits.json', '["mine"]'),
    ('compose_digits.json', '{"mine": 1}'),
])
def test_foreign_folder_is_left_alone(tmp_path, call_tool, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(SystemExit, match='no data set of this tool'):
        call_tool('--out', tmp_path, *SETTINGS)
    assert contents(tmp_path).keys() == {(tmp_path / name).relative_to(
        tmp_path)}
