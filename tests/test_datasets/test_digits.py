import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import DATASETS, DefaultScope
from mmpretrain.apis import ImageClassificationInferencer
from mmpretrain.registry import TRANSFORMS
from sklearn.datasets import load_digits

from mmstepnet.datasets import DigitsClassification, load_digit_split
from tests.documents import ROOT

CONFIG = ROOT / 'configs' / '_base_' / 'datasets' / 'digits_bs64.py'


@pytest.fixture
def cfg():
    cfg = Config.fromfile(CONFIG)
    cfg.default_scope = 'mmpretrain'
    for loader in (cfg.train_dataloader, cfg.val_dataloader):
        loader.update(num_workers=0, persistent_workers=False)
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        yield cfg


def test_splits_share_no_digit_and_lose_none():
    digits = load_digits()
    positions = []
    for split in ('train', 'val'):
        images, labels, chosen = load_digit_split(split)
        positions.extend(chosen)
        assert images.dtype == np.uint8 and images.max() == 255
        np.testing.assert_array_equal(
            np.rint(images / 255 * 16), digits.images[chosen])
        np.testing.assert_array_equal(labels, digits.target[chosen])
    np.testing.assert_array_equal(np.sort(positions), np.arange(1797))
    # Positions are digits: scikit-learn holds none twice.
    assert len(np.unique(digits.data, axis=0)) == 1797


def test_class_counts_equal_scikit_learns():
    counts = {
        split: np.bincount(DigitsClassification(split).get_gt_labels())
        for split in ('train', 'val')
    }
    expected = np.bincount(load_digits().target)
    np.testing.assert_array_equal(counts['train'] + counts['val'], expected)
    assert np.abs(counts['val'] - expected / 5).max() <= 1


def test_sample_suits_the_hosts_transforms():
    dataset = DigitsClassification('val')
    assert dataset.metainfo['classes'] == tuple('0123456789')
    sample = dataset[3]
    image = sample['img']
    assert image.shape == (8, 8, 3) and image.dtype == np.uint8
    assert (image == image[..., :1]).all()
    for transform in (
            dict(type='Resize', scale=40), dict(type='RandomCrop',
                                                crop_size=36, padding=2),
            dict(type='PackInputs')):
        sample = TRANSFORMS.build(transform)(sample)
    assert sample['inputs'].shape == (3, 36, 36)
    assert sample['inputs'].dtype == torch.uint8
    assert sample['data_samples'].gt_label.item() == dataset[3]['gt_label']


def test_inferencer_reads_a_picture_as_the_data_set_does(cfg, tmp_path):
    cfg.model = dict(
        type='ImageClassifier',
        backbone=dict(type='mmstepnet.StepResNetCIFAR', depth=20),
        neck=dict(type='GlobalAveragePooling'),
        head=dict(type='LinearClsHead', num_classes=10, in_channels=64))
    torch.manual_seed(0)
    inferencer = ImageClassificationInferencer(cfg, pretrained=False)
    path = tmp_path / 'digit.png'
    cv2.imwrite(str(path), load_digit_split('val')[0][17])
    result, = inferencer(str(path), show_dir=str(tmp_path / 'out'))
    sample = DATASETS.build(cfg.val_dataloader.dataset)[17]
    with torch.no_grad():
        expected, = inferencer.model.val_step(
            dict(inputs=[sample['inputs']],
                 data_samples=[sample['data_samples']]))
    np.testing.assert_allclose(
        result['pred_scores'], expected.pred_score.numpy(), rtol=1e-5)
    assert expected.pred_score.std() > 0
    assert (tmp_path / 'out' / 'digit.png').is_file()
