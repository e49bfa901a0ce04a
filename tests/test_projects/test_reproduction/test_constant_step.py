"""The frozen row of the plan: steps stay where they start."""

import math

import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, init_default_scope
from mmpretrain.structures import DataSample

from tests.documents import ROOT

CONFIG = ('projects/reproduction/configs/small/'
          'resnet164_stepnet-frozen_cifar10-10k.py')


def test_frozen_steps_stay_constant():
    """Training moves every parameter but the adaptors'."""
    init_default_scope('mmpretrain')
    torch.manual_seed(0)
    cfg = Config.fromfile(ROOT / CONFIG)
    cfg.model.backbone.depth = 20
    cfg.model.head.in_channels = 64
    model = MODELS.build(
        dict(cfg.model, data_preprocessor=cfg.data_preprocessor)).train()
    model.init_weights()
    before = {k: p.clone() for k, p in model.named_parameters()}
    steps = []
    for name, module in model.named_modules():
        if name.endswith('.attention'):
            module.register_forward_hook(lambda m, i, out: steps.append(out))
    optim = build_optim_wrapper(model, cfg.optim_wrapper)
    for _ in range(2):
        model.train_step(dict(
            inputs=list(torch.randint(0, 256, (4, 3, 32, 32),
                                      dtype=torch.uint8)),
            data_samples=[DataSample().set_gt_label(i) for i in range(4)],
        ), optim)
    moved = {k for k, p in model.named_parameters()
             if not torch.equal(p, before[k])}
    assert moved == {k for k in before if '.attention.' not in k}
    model.eval()
    model(torch.rand(2, 3, 32, 32))
    start = 1 / (1 + math.e)
    assert len(steps) > 6
    for step in steps:
        torch.testing.assert_close(step, torch.full_like(step, start))
