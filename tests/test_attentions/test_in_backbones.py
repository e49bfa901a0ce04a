"""Attentions inside StepResNet and StepResNetCIFAR."""

from functools import partial

import pytest
import torch

from mmstepnet import models
from mmstepnet.attentions import FCA
from mmstepnet.models import StepResNetCIFAR
from tests.utils import perturb

StepResNet = partial(models.StepResNet, host='mmpretrain')


def test_every_parameter_learns(cfg):
    if cfg['type'] in ('SE', 'CBAM', 'SEM', 'FCA', 'OursSharedMLP'):
        # One hidden unit for 16 channels can be dead for a whole batch.
        cfg = dict(cfg, reduction=2)
    model = perturb(StepResNetCIFAR(20, attention=cfg)).train()
    out, = model(torch.randn(4, 3, 32, 32))
    (out * torch.randn_like(out)).sum().backward()
    without = [
        name for name, parameter in model.named_parameters()
        if not parameter.grad.isfinite().all() or not parameter.grad.any()
    ]
    assert not without


@pytest.mark.parametrize('model, side', [
    (lambda: StepResNet(18, attention=dict(type='FCA')), 224),
    (lambda: StepResNet(
        18, attention=dict(type='FCA'), strides=(1, 2, 2, 1)), 224),
    (lambda: StepResNetCIFAR(20, attention=dict(type='FCA')), 32),
])
def test_backbones_know_their_map_sizes(model, side):
    model, seen = model().eval(), []

    def compare(attention, inputs):
        seen.append(tuple(inputs[1].shape[2:]) == (attention.map_size, ) * 2)

    for module in model.modules():
        if isinstance(module, FCA):
            module.register_forward_pre_hook(compare)
    with torch.no_grad():
        model(torch.rand(1, 3, side, side))
    assert seen and all(seen)
