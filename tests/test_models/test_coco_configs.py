"""What StepNet's detectors start from, and that their adaptors can act."""

from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import Runner

from tests.utils import perturb

pytest.importorskip('mmdet')
ROOT = Path(__file__).parents[2]
DATA = ROOT / 'data' / 'coco_small'


@pytest.mark.parametrize('attention', ['se', 'eca', 'sge', 'stepnet'])
def test_backbones_come_from_imagenet_whole(tmp_path, attention):
    """Every weight, the attention's included, is the classifier's."""
    name = f'resnet50_{attention}_imagenet'
    cfg = Config.fromfile(ROOT / f'configs/imagenet/{name}.py')
    init_default_scope(cfg.default_scope)
    classifier = perturb(MODELS.build(cfg.model))
    cfg = Config.fromfile(ROOT / 'projects/reproduction/configs/coco' / (
        f'faster_rcnn_r50_{attention}-imagenet_coco.py'))
    init_cfg = cfg.model.backbone.init_cfg
    assert init_cfg.checkpoint == f'work_dirs/{name}/epoch_120.pth'
    init_cfg.checkpoint = str(tmp_path / 'epoch_120.pth')
    torch.save(dict(state_dict=classifier.state_dict()), init_cfg.checkpoint)
    init_default_scope(cfg.default_scope)
    backbone = MODELS.build(cfg.model.backbone)
    backbone.init_weights()
    expected = classifier.backbone.state_dict()
    got = backbone.state_dict()
    assert got.keys() == expected.keys()
    assert all(torch.equal(got[key], expected[key]) for key in got)


class GradientSums(Hook):
    """Absolute gradients of the adaptors, from the second iteration on."""

    def before_train(self, runner):
        self.sums = {
            name: torch.zeros_like(p)
            for name, p in runner.model.named_parameters()
            if '.attention.' in name
        }
        for name, p in runner.model.named_parameters():
            if name in self.sums and p.requires_grad:
                p.register_hook(lambda grad, name=name: self.add(name, grad))
        self.iteration = 0

    def before_train_iter(self, runner, *args, **kwargs):
        self.iteration += 1

    def add(self, name, grad):
        # The first gradients of conv and BN are zero, because W_IE is.
        if self.iteration >= 2:
            self.sums[name] += grad.abs()


@pytest.mark.skipif(not DATA.exists(), reason='needs data/coco_small')
def test_every_adaptor_of_the_flagship_learns(tmp_path):
    """20 iterations on small images; random weights for torchvision's."""
    cfg = Config.fromfile(ROOT / 'configs/faster_rcnn_r50_stepnet_coco.py')
    cfg.model.backbone.init_cfg = None
    cfg.model.train_cfg.rcnn.sampler.num = 64
    loader = cfg.train_dataloader
    loader.update(batch_size=1, num_workers=0, persistent_workers=False)
    loader.dataset.update(
        data_root=str(DATA), ann_file='annotations/instances_train.json',
        data_prefix=dict(img='images/'))
    for transform in loader.dataset.pipeline:
        if transform.type == 'Resize':
            transform.scale = (128, 96)
    cfg.custom_hooks[0].num_batches = 3
    cfg.train_cfg = dict(type='IterBasedTrainLoop', max_iters=20)
    for part in ('dataloader', 'evaluator', 'cfg'):
        cfg[f'val_{part}'] = cfg[f'test_{part}'] = None
    cfg.default_hooks.checkpoint = None
    cfg.work_dir = str(tmp_path)
    cfg.randomness = dict(seed=0)
    runner = Runner.from_cfg(cfg)
    sums = GradientSums()
    runner.register_hook(sums)
    runner.train()
    # All but the first block of layer2 (4), layer3 (6) and layer4 (3).
    assert len(sums.sums) == (3 + 5 + 2) * 5
    silent = [name for name, total in sums.sums.items()
              if not total.sum() > 0]
    assert not silent
