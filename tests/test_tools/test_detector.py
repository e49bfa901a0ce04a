"""A detector on composed digits: trained and evaluated by the tools."""

import json
import pickle

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from mmstepnet.stiffness import Trajectories
from tests.documents import ROOT
from tests.programs import IN_PROCESS, call_tool, load_tool

CONFIG = ROOT / 'configs/digits/faster_rcnn_r18_stepnet_digits.py'


@pytest.fixture(scope='module')
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp('detector')
    data = folder / 'data'
    call_tool(load_tool('dataset_converters/compose_digits.py'), '--out',
              data, '--train', 16, '--val', 5)
    config = folder / 'detector.py'
    config.write_text(
        f"_base_ = ['{CONFIG}']\ncustom_hooks = [dict("
        "type='mmstepnet.StiffnessHook', reading='unit', figures=False)]\n")
    options = ['--cfg-options', *IN_PROCESS, 'train_cfg.val_interval=1',
               'train_cfg.max_epochs=1']
    for loop in ('train', 'val', 'test'):
        options += [f'{loop}_dataloader.dataset.data_root={data}/']
    # Recall of any class: a few iterations find no precise boxes.
    for loop in ('val', 'test'):
        options += [f'{loop}_evaluator.ann_file={annotations(folder)}',
                    f'{loop}_evaluator.metric=proposal']
    call_tool(load_tool('train.py'), config, '--work-dir', folder / 'train',
              *options)
    call_tool(load_tool('test.py'), config, folder / 'train' / 'epoch_1.pth',
              '--work-dir', folder / 'test',
              '--out', folder / 'predictions.pkl',
              '--show-dir', folder / 'shown', *options)
    return folder


def annotations(folder):
    return folder / 'data' / 'annotations' / 'instances_val.json'


def test_evaluation_is_of_these_boxes(job):
    with open(job / 'predictions.pkl', 'rb') as file:
        predictions = pickle.load(file)
    truth = COCO(str(annotations(job)))
    assert sorted(p['img_id'] for p in predictions) == truth.getImgIds()
    categories = truth.getCatIds()
    boxes = []
    for sample in predictions:
        found = sample['pred_instances']
        for box, score, label in zip(
                found['bboxes'].numpy(), found['scores'].numpy(),
                found['labels'].numpy()):
            box[2:] -= box[:2]
            boxes.append(dict(
                image_id=sample['img_id'], category_id=categories[label],
                bbox=box.tolist(), score=float(score)))
    assert boxes
    judge = COCOeval(truth, truth.loadRes(boxes), 'bbox')
    judge.params.useCats = 0
    judge.params.maxDets = [100]
    judge.evaluate()
    judge.accumulate()
    expected = judge.eval['recall'][:, 0, 0, 0].mean()
    assert expected > 0
    trained, = (job / 'train').glob('*/vis_data/scalars.json')
    tested, = (job / 'test').glob('*/*.json')
    records = [json.loads(line) for line in trained.read_text().splitlines()]
    validated, = (r for r in records if 'coco/AR@100' in r)
    for metrics in validated, json.loads(tested.read_text()):
        assert metrics['coco/AR@100'] == pytest.approx(expected, abs=6e-4)
    pictures = sorted(path.name for path in (job / 'shown').iterdir())
    assert pictures == sorted(
        image['file_name'] for image in truth.imgs.values())
    losses = [record['loss'] for record in records if 'loss' in record]
    assert losses and all(map(np.isfinite, losses))


def test_stiffness_is_of_these_pictures(job):
    record = Trajectories.load(
        job / 'test' / 'stiffness' / 'stiffness_test.npz')
    assert len(record) == 5 and record.settings['reading'] == 'unit'
    tested, = (job / 'test').glob('*/*.json')
    metrics = json.loads(tested.read_text())
    assert metrics['stiffness/nsi'] == pytest.approx(
        record.unit.mean(), rel=1e-4)
