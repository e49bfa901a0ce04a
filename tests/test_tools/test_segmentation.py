"""A StepNet segmentor of MMSegmentation: the docs' config, as users run it.

The masks are rings and bars of three classes, drawn here.
"""

import json
import pickle

import cv2
import numpy as np
import pytest
import torch

from tests.documents import ROOT, python_snippets
from tests.programs import call_tool, load_tool, run_tool

pytest.importorskip(
    'mmseg', reason='needs MMSegmentation: requirements/tests-*.txt')

CLASSES = ('ground', 'ring', 'bar')
SMALL = """
_base_ = ['./documented.py']
norm = dict(type='BN')  # SyncBN needs a GPU
head = dict(channels=16, num_classes=3, norm_cfg=norm)
model = dict(
    data_preprocessor=dict(size=(64, 64)),
    pretrained=None,
    backbone=dict(norm_cfg=norm),
    decode_head=head,
    auxiliary_head=head)
pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs')
]
dataset = dict(
    _delete_=True,
    type='BaseSegDataset',
    data_root={data!r},
    data_prefix=dict(img_path='images', seg_map_path='masks'),
    img_suffix='.png',
    seg_map_suffix='.png',
    metainfo=dict(classes={classes!r}, palette=[[0] * 3, [1] * 3, [2] * 3]),
    pipeline=pipeline)
loader = dict(num_workers=0, persistent_workers=False, dataset=dataset)
train_dataloader = dict(batch_size=2, **loader)
val_dataloader = test_dataloader = loader
train_cfg = dict(max_iters=3, val_interval=3)
default_hooks = dict(logger=dict(interval=1), checkpoint=dict(interval=1))
randomness = dict(seed=0)
"""


def draw(folder):
    """Six images with their masks."""
    rng = np.random.default_rng(0)
    for name in ('images', 'masks'):
        (folder / name).mkdir(parents=True)
    for i in range(6):
        mask = np.zeros((64, 64), np.uint8)
        x, y, z = map(int, rng.integers(16, 48, 3))
        cv2.circle(mask, (x, y), 12, 1, 4)
        cv2.rectangle(mask, (z, 4), (z + 6, 60), 2, -1)
        image = rng.normal(60 + 70 * mask[..., None], 20, (64, 64, 3))
        cv2.imwrite(str(folder / 'images' / f'{i}.png'), image.clip(0, 255))
        cv2.imwrite(str(folder / 'masks' / f'{i}.png'), mask)


def documented_config():
    config, *_ = [snippet for snippet in python_snippets(
        ROOT / 'docs' / 'segmentation.md') if 'mmseg::' in snippet]
    return config


@pytest.fixture(scope='module')
def job(tmp_path_factory):
    """Folder of a job that was trained for three iterations and tested."""
    folder = tmp_path_factory.mktemp('segmentation')
    draw(folder / 'data')
    (folder / 'documented.py').write_text(documented_config())
    config = folder / 'small.py'
    config.write_text(SMALL.format(
        data=str(folder / 'data'), classes=CLASSES))
    call_tool(load_tool('train.py'), config, '--work-dir', folder / 'train')
    run_tool('tools/test.py', config, folder / 'train' / 'iter_3.pth',
             '--work-dir', folder / 'test',
             '--out', folder / 'predictions.pkl',
             '--show-dir', folder / 'shown')
    return folder


def logged(folder):
    path, = folder.glob('*/vis_data/scalars.json')
    return [json.loads(line) for line in path.read_text().splitlines()]


def metrics_of_test(folder):
    path, = (folder / 'test').glob('*/*.json')
    return json.loads(path.read_text())


def test_every_parameter_of_the_backbone_learns(job):
    weights = [
        torch.load(job / 'train' / f'iter_{k}.pth', weights_only=False)[
            'state_dict'] for k in (1, 3)
    ]
    gates = [key for key in weights[0] if '.step.attention.' in key]
    assert gates
    for key, value in weights[0].items():
        if key.startswith('backbone.') and value.is_floating_point():
            assert not torch.equal(value, weights[1][key]), key


def test_evaluation_is_of_these_masks(job):
    with open(job / 'predictions.pkl', 'rb') as file:
        predictions = pickle.load(file)
    assert len(predictions) == 6
    assert len(list((job / 'shown').rglob('*.png'))) == 6
    both, either = np.zeros(3), np.zeros(3)
    for sample in predictions:
        got = sample['pred_sem_seg']['data'].numpy()[0]
        mask = cv2.imread(sample['seg_map_path'], cv2.IMREAD_UNCHANGED)
        for k in range(3):
            both[k] += ((got == k) & (mask == k)).sum()
            either[k] += ((got == k) | (mask == k)).sum()
    expected = 100 * (both / either).mean()
    trained = logged(job / 'train')
    for metrics in trained[-1], metrics_of_test(job):
        assert metrics['mIoU'] == pytest.approx(expected, abs=0.006)
    losses = [record['loss'] for record in trained if 'loss' in record]
    assert len(losses) == 3 and np.isfinite(losses).all()
    assert all(metrics['stiffness/nsi'] > 0 for metrics in (
        trained[-1], metrics_of_test(job)))
    assert list((job / 'test' / 'stiffness').glob('*.npz'))
