"""Detection data from which a job could learn or measure nothing."""

import copy
import json
from itertools import count
from pathlib import Path

import pytest
from mmengine.config import Config
from mmengine.registry import init_default_scope
from mmengine.runner import Runner

from mmstepnet.jobs.patches import patch_mmengine
from tests.checkpoints import restored_mmengine  # noqa: F401, a fixture
from tests.programs import call_tool, load_tool

CONFIG = (Path(__file__).parents[2] / 'configs' / 'digits' /
          'faster_rcnn_r18_stepnet_digits.py')
NUMBERS = count()


@pytest.fixture(scope='module')
def digits(tmp_path_factory):
    root = tmp_path_factory.mktemp('coco') / 'digits'
    call_tool(load_tool('dataset_converters/compose_digits.py'), '--out',
              root, '--train', 4, '--val', 2)
    return root


@pytest.fixture
def patched(restored_mmengine, monkeypatch):  # noqa: F811
    transforms = pytest.importorskip('mmcv.transforms')
    monkeypatch.setattr(transforms.LoadImageFromFile, 'transform',
                        transforms.LoadImageFromFile.transform)
    patch_mmengine()


def job(digits, tmp_path, split='train', spoil=None, options=()):
    """A job of one iteration; a split's annotations are spoilt."""
    init_default_scope('mmdet')
    cfg = Config.fromfile(CONFIG)
    paths = {}
    for name in ('train', 'val'):
        path = digits / 'annotations' / f'instances_{name}.json'
        content = json.loads(path.read_text())
        if name == split and spoil:
            spoil(content)
        paths[name] = str(tmp_path / path.name)
        Path(paths[name]).write_text(json.dumps(content))
        loader = cfg[f'{name}_dataloader']
        loader.update(num_workers=0, persistent_workers=False, batch_size=2)
        loader.dataset.update(data_root=str(digits), ann_file=paths[name])
    cfg.val_evaluator.ann_file = paths['val']
    cfg.work_dir = str(tmp_path / 'work')
    cfg.train_cfg = dict(by_epoch=False, max_iters=1, val_interval=9)
    cfg.default_hooks.checkpoint = None
    cfg.custom_hooks = [dict(type='mmstepnet.DataCheckHook')]
    cfg.log_level = 'ERROR'
    cfg.experiment_name = f'detection_data{next(NUMBERS)}'
    cfg.merge_from_dict(dict(options))
    return Runner.from_cfg(cfg)


def each(part, **fields):
    """Set fields of all annotations or categories, from what was there."""
    def spoil(content):
        for entry in content[part]:
            for name, change in fields.items():
                if change is None:
                    del entry[name]
                else:
                    entry[name] = change(entry)
    return spoil


def relative(entry):
    return [value / 128 for value in entry['bbox']]


def renamed(entry):
    return {'three': 'Three ', '3': ' 3'}.get(entry['name'], entry['name'])


@pytest.mark.parametrize('split, spoil, options, message', [
    ('val', each('annotations', iscrowd=None), {},
     "val_evaluator.ann_file: annotation 1 has no 'iscrowd'"),
    ('train', each('annotations', bbox=relative), {},
     'train data set of .* no usable box in 4 images.*relative'),
    ('val', each('annotations', bbox=relative), {},
     'val data set of .* no usable box in 2 images'),
    ('train', each('annotations', iscrowd=lambda entry: 1), {},
     'no usable box in 4 images.*crowds'),
    ('train', each('categories', name=renamed), {},
     "has 9 of the 10 classes.*'3' is ' 3' there"),
    (None, None, {'model.roi_head.bbox_head.num_classes': 80},
     'model.roi_head.bbox_head has num_classes=80, the train data set of '
     '.* has the 10 classes'),
    (None, None, {'train_dataloader.dataset.data_prefix.img': 'annotations'},
     'train data set of .* images that are not there.*annotations/'),
])
def test_bad_data_are_refused_before_the_first_iteration(
        digits, tmp_path, split, spoil, options, message):
    runner = job(digits, tmp_path, split, spoil, options)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        runner.train()
    assert runner.iter == 0


def test_training_boxes_need_no_iscrowd(digits, tmp_path):
    """And good data train."""
    runner = job(digits, tmp_path, 'train', each('annotations', iscrowd=None))
    runner.train()
    assert runner.iter == 1


def test_one_box_is_enough(digits, tmp_path):
    def spoil(content):
        kept = copy.deepcopy(content['annotations'][-1])
        each('annotations', bbox=relative)(content)
        content['annotations'][-1] = kept

    job(digits, tmp_path, 'train', spoil).train()


def test_an_image_that_cannot_be_decoded_is_named(digits, tmp_path, patched):
    (tmp_path / 'images').mkdir()
    for path in (digits / 'train').iterdir():
        (tmp_path / 'images' / path.name).write_bytes(b'no picture')
    runner = job(digits, tmp_path, options={
        'train_dataloader.dataset.data_prefix.img': str(tmp_path / 'images')})
    with pytest.raises((ValueError, AssertionError), match='images/.*png'):
        runner.train()
