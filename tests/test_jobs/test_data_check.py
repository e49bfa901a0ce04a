"""Data sets whose classes or pictures are not the model's."""

import json
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch.nn as nn
from mmengine.config import Config
from mmengine.dataset import ConcatDataset, RepeatDataset
from mmengine.registry import init_default_scope
from mmengine.runner import Runner
from mmpretrain.datasets import CustomDataset

from mmstepnet.jobs.data_check_hook import DataCheckHook
from tests.documents import ROOT
from tests.programs import call_tool, load_tool

CONFIG = ROOT / 'configs/digits/faster_rcnn_r18_stepnet_digits.py'
NUMBERS = count()


@pytest.fixture(scope='module')
def digits(tmp_path_factory):
    root = tmp_path_factory.mktemp('coco') / 'digits'
    call_tool(load_tool('dataset_converters/compose_digits.py'), '--out',
              root, '--train', 4, '--val', 2)
    return root


def job(digits, tmp_path, split='train', spoil=None, options=()):
    """A job of one iteration; a split's categories are spoilt."""
    init_default_scope('mmdet')
    cfg = Config.fromfile(CONFIG)
    paths = {}
    for name in ('train', 'val'):
        path = digits / 'annotations' / f'instances_{name}.json'
        content = json.loads(path.read_text())
        if name == split and spoil:
            spoil(content['categories'])
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


def rename(categories):
    for category in categories:
        if category['name'] in ('3', 'three'):
            category['name'] = ' 3'


@pytest.mark.parametrize('split, spoil, options, message', [
    ('train', rename, {}, "train data set .* lacks the classes '3'; its .*' "
     "3'"),
    ('val', lambda categories: categories.pop(), {},
     "val data set .* lacks the classes '9'"),
    (None, None, {'model.roi_head.bbox_head.num_classes': 80},
     "has the 10 classes '0', .*model.roi_head.bbox_head has "
     'num_classes=80'),
    (None, None, {'train_dataloader.dataset.data_prefix.img': 'annotations'},
     'train data set .* names the picture .*annotations/.*not there'),
])
def test_bad_data_are_refused_before_the_first_iteration(
        digits, tmp_path, split, spoil, options, message):
    runner = job(digits, tmp_path, split, spoil, options)
    with pytest.raises(ValueError, match=message):
        runner.train()
    assert runner.iter == 0


def test_good_data_train(digits, tmp_path):
    runner = job(digits, tmp_path)
    runner.train()
    assert runner.iter == 1


class Classifier(nn.Module):
    """With as many classes as are given."""

    def __init__(self, classes):
        super().__init__()
        self.head = nn.Module()
        self.head.num_classes = classes


@pytest.fixture
def folders(tmp_path):
    """Two pictures, in folders that MMPretrain numbers by the alphabet."""
    for name in ('apple', 'pear'):
        (tmp_path / name).mkdir()
        (tmp_path / name / '1.jpg').touch()

    def make(*names):
        return CustomDataset(str(tmp_path), metainfo=dict(
            classes=names) if names else None)
    return make


def look(dataset, classes, before='train'):
    loader = SimpleNamespace(dataset=dataset)
    runner = SimpleNamespace(
        train_dataloader=loader, val_loop=None, test_dataloader=loader,
        model=Classifier(classes))
    getattr(DataCheckHook(), f'before_{before}')(runner)


@pytest.mark.parametrize('wrap', [
    lambda data: data, lambda data: RepeatDataset(data, 2),
    lambda data: ConcatDataset([data, data])])
@pytest.mark.parametrize('before', ['train', 'test'])
@pytest.mark.parametrize('names, classes, message', [
    (('apple', 'pear'), 2, None), (('Malus', 'Pyrus'), 2, None),
    ((), 2, None), (('apple', 'pear'), 1000, None),
    (('pear', 'apple'), 2, "the folders 'apple', 'pear', and its classes"),
    (('apple', 'pear'), 1, "has the 2 classes 'apple', 'pear', and "
     'model.head has num_classes=1'),
])
def test_classification(folders, wrap, before, names, classes, message):
    """Below wrappers of data sets as well; a test may have fewer classes."""
    dataset = wrap(folders(*names))
    if message is None:
        look(dataset, classes, before)
    else:
        with pytest.raises(ValueError, match=f'the {before} data .*{message}'):
            look(dataset, classes, before)


def test_data_sets_of_other_kinds_pass():
    look([1, 2, 3], 2)
    look(SimpleNamespace(metainfo={}), 2)
