import json

import pytest
from mmengine.config import Config
from mmengine.registry import DefaultScope
from mmengine.runner import Runner

from tests.documents import ROOT

CONFIG = ROOT / 'configs' / '_base_' / 'datasets' / 'digits_detection.py'


def set_root(cfg, root):
    for split in ('train', 'val', 'test'):
        loader = cfg[f'{split}_dataloader']
        loader.update(num_workers=0, persistent_workers=False)
        loader.dataset.data_root = f'{root}/'


@pytest.fixture
def cfg(digits_root):
    cfg = Config.fromfile(CONFIG)
    set_root(cfg, digits_root)
    with DefaultScope.overwrite_default_scope('mmdet'):
        yield cfg


@pytest.mark.parametrize('split', ['train', 'val'])
def test_base_config_loads_through_the_runner(cfg, digits_root, split):
    loader = Runner.build_dataloader(cfg[f'{split}_dataloader'], seed=0)
    annotations = json.loads(
        (digits_root / 'annotations' / f'instances_{split}.json').read_text())
    expected = {image['id']: [] for image in annotations['images']}
    for annotation in annotations['annotations']:
        x, y, width, height = annotation['bbox']
        expected[annotation['image_id']].append(
            ([x, y, x + width, y + height], annotation['category_id'] - 1))
    got = {}
    for batch in loader:
        for image, sample in zip(batch['inputs'], batch['data_samples']):
            assert image.shape == (3, 128, 128)
            truth = sample.gt_instances
            got[sample.img_id] = list(
                zip(truth.bboxes.tensor.tolist(), truth.labels.tolist()))
    # Empty pictures are trained with, too.
    assert got == expected
    assert [] in got.values()
