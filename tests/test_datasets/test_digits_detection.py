import json
import sys

import pytest
from mmengine.config import Config
from mmengine.registry import DATASETS, DefaultScope
from mmengine.runner import Runner

import mmstepnet.datasets
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


@pytest.mark.parametrize('lost', ['annotations/instances_val.json', 'val/'])
def test_missing_file_names_path_and_command(cfg, tmp_path, lost):
    root = tmp_path / 'nowhere'
    if lost == 'val/':
        (root / 'annotations').mkdir(parents=True)
        (root / 'annotations' / 'instances_val.json').write_text('{}')
    set_root(cfg, root)
    with pytest.raises(FileNotFoundError) as error:
        DATASETS.build(cfg.val_dataloader.dataset)
    assert f'{root}/{lost}' in str(error.value)
    assert (f'tools/dataset_converters/compose_digits.py --out {root}/'
            in str(error.value))


def test_forgotten_paths_are_named(cfg):
    with pytest.raises(FileNotFoundError, match="ann_file is ''"):
        DATASETS.build(dict(type='mmstepnet.DigitsDetection'))


def test_missing_mmdet_names_the_fix(monkeypatch):
    monkeypatch.delitem(
        sys.modules, 'mmstepnet.datasets.digits_detection', raising=False)
    for name in ('mmdet', 'mmdet.datasets'):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match='needs mmdet.*install_and_versions'):
        DATASETS.build(dict(type='mmstepnet.DigitsDetection'))
    with pytest.raises(ImportError, match='needs mmdet.*install_and_versions'):
        mmstepnet.datasets.DigitsDetection  # noqa: B018
    DATASETS.build(dict(type='mmstepnet.DigitsClassification', split='val'))
