"""A detector on composed digits and MMSegmentation's documented segmentor.

Both are trained and tested by the tools, as users run them.
"""

import json
import pickle
from importlib.util import find_spec

import cv2
import numpy as np
import pytest
import torch

from mmstepnet.stiffness import Trajectories
from tests.documents import ROOT, snippets
from tests.programs import IN_PROCESS, call_tool, load_tool, run_tool

DETECTOR = """
_base_ = [{base!r}]
custom_hooks = [dict(
    type='mmstepnet.StiffnessHook', reading='unit', figures=False)]
train_cfg = dict(max_epochs=1, val_interval=1)
data = dict(dataset=dict(data_root={data!r}))
train_dataloader = val_dataloader = test_dataloader = data
# Recall of any class: a few iterations find no precise boxes.
val_evaluator = test_evaluator = dict(
    ann_file={data!r} + 'annotations/instances_val.json', metric='proposal')
"""
SEGMENTOR = """
_base_ = [{base!r}]
norm = dict(type='BN')  # SyncBN needs a GPU
head = dict(channels=16, num_classes=3, norm_cfg=norm)
model = dict(
    data_preprocessor=dict(size=(64, 64)), pretrained=None,
    backbone=dict(norm_cfg=norm), decode_head=head, auxiliary_head=head)
dataset = dict(
    _delete_=True, type='BaseSegDataset', data_root={data!r},
    data_prefix=dict(img_path='val', seg_map_path='masks'),
    img_suffix='.png', seg_map_suffix='.png',
    metainfo=dict(classes=('ground', 'ring', 'bar'),
                  palette=[[0] * 3, [1] * 3, [2] * 3]),
    pipeline=[dict(type='LoadImageFromFile'), dict(type='LoadAnnotations'),
              dict(type='PackSegInputs')])
train_dataloader = dict(batch_size=2, dataset=dataset)
val_dataloader = test_dataloader = dict(dataset=dataset)
train_cfg = dict(max_iters=3, val_interval=3)
"""


def detection(folder):
    """Five pictures of digits; the config."""
    call_tool(
        load_tool('dataset_converters/compose_digits.py'),
        '--out',
        folder / 'data',
        '--train',
        16,
        '--val',
        5,
    )
    return DETECTOR, ROOT / 'configs/digits/faster_rcnn_r18_stepnet_digits.py'


def segmentation(folder):
    """Five pictures with a mask of a ring and a bar; the page's config."""
    rng = np.random.default_rng(0)
    for name in ('val', 'masks'):
        (folder / 'data' / name).mkdir(parents=True)
    for i in range(5):
        mask = np.zeros((64, 64), np.uint8)
        x, y, z = map(int, rng.integers(16, 48, 3))
        cv2.circle(mask, (x, y), 12, 1, 4)
        cv2.rectangle(mask, (z, 4), (z + 6, 60), 2, -1)
        image = rng.normal(60 + 70 * mask[..., None], 20, (64, 64, 3))
        cv2.imwrite(f'{folder}/data/val/{i}.png', image.clip(0, 255))
        cv2.imwrite(f'{folder}/data/masks/{i}.png', mask)
    documented, *_ = [
        snippet
        for snippet in snippets(ROOT / 'docs' / 'other_projects.md', 'python')
        if 'mmseg::' in snippet
    ]
    (folder / 'documented.py').write_text(documented)
    return SEGMENTOR, folder / 'documented.py'


@pytest.mark.parametrize(
    'prepare, host, metric',
    [(detection, 'mmdet', 'coco/AR@100'), (segmentation, 'mmseg', 'mIoU')],
    ids=['detector', 'segmentor'],
)
def test_a_job(prepare, host, metric, tmp_path):
    """Trained, evaluated alike by the training and the test, and drawn."""
    if find_spec(host) is None:
        pytest.skip(f'needs {host}: requirements/tests-*.txt')
    text, base = prepare(tmp_path)
    config = tmp_path / 'small.py'
    config.write_text(text.format(base=str(base), data=f'{tmp_path}/data/'))
    options = [
        '--cfg-options',
        *IN_PROCESS,
        'default_hooks.logger.interval=1',
        'default_hooks.checkpoint.interval=1',
    ]
    call_tool(
        load_tool('train.py'),
        config,
        '--work-dir',
        tmp_path / 'train',
        *options,
    )
    last = (tmp_path / 'train' / 'last_checkpoint').read_text()
    run_tool(
        'tools/test.py',
        config,
        last,
        '--work-dir',
        tmp_path / 'test',
        '--out',
        tmp_path / 'predictions.pkl',
        '--show-dir',
        tmp_path / 'shown',
        *options,
    )
    with open(tmp_path / 'predictions.pkl', 'rb') as file:
        assert len(pickle.load(file)) == 5
    assert len(list((tmp_path / 'shown').rglob('*.png'))) == 5
    (path,) = (tmp_path / 'train').glob('*/vis_data/scalars.json')
    records = [json.loads(line) for line in path.read_text().splitlines()]
    losses = [record['loss'] for record in records if 'loss' in record]
    assert losses and np.isfinite(losses).all()
    (validated,) = (record for record in records if metric in record)
    (path,) = (tmp_path / 'test').glob('*/*.json')
    tested = json.loads(path.read_text())
    for name in (metric, 'stiffness/nsi'):
        assert validated[name] > 0
        assert tested[name] == pytest.approx(validated[name], rel=1e-3)
    measured = Trajectories.load(
        tmp_path / 'test' / 'stiffness' / 'stiffness_test.npz'
    )
    assert len(measured) == 5
    if host == 'mmseg':  # which has a checkpoint of each iteration
        first, last = (
            torch.load(path, weights_only=False)['state_dict']
            for path in (tmp_path / 'train' / 'iter_1.pth', last)
        )
        gates = [key for key in first if '.step.attention.' in key]
        assert gates and not any(
            torch.equal(first[key], last[key])
            for key in gates
            if first[key].is_floating_point()
        )
