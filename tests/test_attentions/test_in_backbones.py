"""Attentions of backbones: their names in configs, and their maps."""

from functools import partial

import pytest
import torch
from mmengine.registry import DefaultScope

from mmstepnet import models
from mmstepnet.attentions import ATTENTIONS, FCA, ChannelGate, build_attention
from mmstepnet.models import StepResNetCIFAR

StepResNet = partial(
    models.StepResNet, host='mmpretrain', base_channels=16, stem_channels=16
)


@pytest.mark.parametrize(
    'model, side',
    [
        pytest.param(
            lambda: StepResNet(18, attention=dict(type='FCA')),
            224,
            id='ResNet-18',
        ),
        pytest.param(
            lambda: StepResNet(
                18, attention=dict(type='FCA'), strides=(1, 2, 2, 1)
            ),
            224,
            id='ResNet-18 of larger maps',
        ),
        pytest.param(
            lambda: StepResNetCIFAR(20, attention=dict(type='FCA')),
            32,
            id='ResNet-20',
        ),
    ],
)
def test_backbones_know_their_map_sizes(model, side):
    model, seen = model().eval(), []

    def compare(attention, inputs):
        seen.append(tuple(inputs[1].shape[2:]) == (attention.map_size,) * 2)

    for module in model.modules():
        if isinstance(module, FCA):
            module.register_forward_pre_hook(compare)
    with torch.no_grad():
        model(torch.rand(1, 3, side, side))
    assert seen and all(seen)


class Half(ChannelGate):
    """A class of a user's own."""

    pooled = ('f_mean',)

    def forward(self, f_mean):
        return torch.full_like(f_mean, 0.5)


@pytest.mark.parametrize(
    'name', ['Half', 'mmstepnet.Half', pytest.param(Half, id='the class')]
)
def test_found_in_any_scope_and_given_once(name, monkeypatch):
    monkeypatch.setitem(ATTENTIONS, 'Half', Half)
    for scope in ('mmdet', 'mmpretrain', 'mmstepnet'):
        with DefaultScope.overwrite_default_scope(scope):
            assert type(build_attention(dict(type=name), 4)) is Half
            model = StepResNetCIFAR(20, attention=dict(type=name))
        assert type(model.layer1[1].step.attention) is Half
    assert ATTENTIONS.register(Half) is Half
    with pytest.raises(KeyError, match='Half.* already'):
        ATTENTIONS.register(type('Half', (ChannelGate,), {}))
