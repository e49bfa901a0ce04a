"""What StepNet's detectors start from, and that their adaptors can act."""

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope

from tests.checkpoints import save_model
from tests.documents import ROOT

pytest.importorskip('mmdet')


@pytest.mark.parametrize('attention', ['se', 'eca', 'sge', 'stepnet'])
def test_backbones_come_from_imagenet_whole(tmp_path, attention):
    """Every weight, the attention's included, is the classifier's."""
    name = f'resnet50_{attention}_imagenet'
    path = str(tmp_path / 'epoch_120.pth')
    classifier = save_model(path, ROOT / f'configs/imagenet/{name}.py')
    cfg = Config.fromfile(ROOT / 'projects/reproduction/configs/coco' / (
        f'faster_rcnn_r50_{attention}-imagenet_coco.py'))
    init_cfg = cfg.model.backbone.init_cfg
    assert init_cfg.checkpoint == f'work_dirs/{name}/epoch_120.pth'
    init_cfg.checkpoint = path
    init_default_scope(cfg.default_scope)
    backbone = MODELS.build(cfg.model.backbone)
    backbone.init_weights()
    expected = classifier.backbone.state_dict()
    got = backbone.state_dict()
    assert got.keys() == expected.keys()
    assert all(torch.equal(got[key], expected[key]) for key in got)
