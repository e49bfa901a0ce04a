import json
from pathlib import Path

import pytest
from mmengine.config import Config

from mmstepnet.jobs.data_check import check_data

CONFIGS = Path(__file__).parents[2] / 'configs'


def coco(tmp_path, annotations=True):
    cfg = Config.fromfile(CONFIGS / 'faster_rcnn_r50_stepnet_coco.py')
    for loop in ('train', 'val', 'test'):
        cfg[f'{loop}_dataloader'].dataset.data_root = str(tmp_path)
    ann_file = tmp_path / 'annotations' / 'instances_val2017.json'
    for loop in ('val', 'test'):
        cfg[f'{loop}_evaluator'].ann_file = str(ann_file)
    if annotations:
        ann_file.parent.mkdir()
        for split in ('train', 'val'):
            path = ann_file.parent / f'instances_{split}2017.json'
            path.write_text(json.dumps(dict(images=[])))
    return cfg


def test_data_that_are_there_pass(tmp_path):
    check_data(coco(tmp_path), 'train', 'val', 'test')


def test_missing_annotation_file_names_field_path_and_fix(tmp_path):
    with pytest.raises(
            FileNotFoundError,
            match=r'train_dataloader\.dataset\.ann_file: .*instances_train2017'
            r'.*--cfg-options train_dataloader'):
        check_data(coco(tmp_path, annotations=False), 'train', 'val')


def test_missing_root_comes_before_its_files(tmp_path):
    cfg = coco(tmp_path)
    cfg.test_dataloader.dataset.data_root = str(tmp_path / 'elsewhere')
    check_data(cfg, 'train', 'val')
    with pytest.raises(FileNotFoundError, match='data_root.*elsewhere'):
        check_data(cfg, 'test')


def test_missing_evaluator_annotations(tmp_path):
    cfg = coco(tmp_path)
    cfg.val_evaluator.ann_file = str(tmp_path / 'nothing.json')
    with pytest.raises(FileNotFoundError, match='val_evaluator.*nothing'):
        check_data(cfg, 'val')


def test_data_set_below_a_wrapper(tmp_path):
    cfg = coco(tmp_path)
    inner = cfg.train_dataloader.dataset
    inner.ann_file = 'gone.json'
    cfg.train_dataloader.dataset = dict(
        type='ConcatDataset',
        datasets=[dict(type='RepeatDataset', times=2, dataset=inner)])
    with pytest.raises(FileNotFoundError,
                       match=r'dataset\.datasets\.0\.dataset\.ann_file'):
        check_data(cfg, 'train')


def test_data_sets_that_download_or_are_remote_pass(tmp_path):
    cifar = Config.fromfile(
        CONFIGS / 'cifar10' / 'resnet164_stepnet_cifar10.py')
    cifar.train_dataloader.dataset.data_root = str(tmp_path / 'none')
    check_data(cifar, 'train')
    cifar.train_dataloader.dataset.download = False
    with pytest.raises(FileNotFoundError, match='data_root'):
        check_data(cifar, 'train')
    remote = coco(tmp_path)
    remote.train_dataloader.dataset.data_root = 's3://bucket/coco'
    check_data(remote, 'train')
