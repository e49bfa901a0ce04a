"""Attentions inside StepResNet and StepResNetCIFAR."""

from functools import partial

import pytest
import torch

from mmstepnet import models
from mmstepnet.attentions import FCA
from mmstepnet.models import StepResNetCIFAR

StepResNet = partial(models.StepResNet, host='mmpretrain')


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
