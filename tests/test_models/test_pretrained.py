"""What a StepBackbone is told: ``pretrained``, its example, its layout."""

import pytest
import torch
import torch.nn as nn
from mmengine.config import ConfigDict
from mmengine.registry import DefaultScope

from mmstepnet.models import StepBackbone
from mmstepnet.registry import MODELS
from mmstepnet.steps.modules import steps_of
from tests.utils import Adds, perturb

pytest.importorskip(
    'mmseg', reason='needs MMSegmentation: requirements/tests-*.txt')

HEAD = dict(num_classes=2, align_corners=False, norm_cfg=dict(type='BN'),
            channels=8)
BACKBONE = dict(type='ResNetV1c', depth=18, norm_cfg=dict(type='BN'))


@pytest.fixture
def weights(tmp_path):
    """A plain backbone's, perturbed, and their file."""
    with DefaultScope.overwrite_default_scope('mmseg'):
        model = perturb(MODELS.build(BACKBONE))
    path = str(tmp_path / 'plain.pth')
    torch.save(dict(state_dict=model.state_dict()), path)
    model.eval()  # returns nothing
    return model, path


def build(backbone, **kwargs):
    head = dict(HEAD, type='UPerHead', in_channels=[64, 128, 256, 512],
                in_index=[0, 1, 2, 3], pool_scales=(1, 2))
    with DefaultScope.overwrite_default_scope('mmseg'):
        model = MODELS.build(ConfigDict(
            type='EncoderDecoder', backbone=backbone, decode_head=head,
            train_cfg=dict(), test_cfg=dict(mode='whole'), **kwargs))
        model.init_weights()
    return model.eval()


@pytest.mark.parametrize('place', ['model', 'backbone', 'init_cfg', 'ours'])
def test_weights_are_loaded(weights, place):
    """Through the model's own argument, as UPerNet's configs have it.

    Our own backbones take it as their host's does.
    """
    plain, path = weights
    inner, outer, model = dict(BACKBONE), {}, {}
    if place == 'init_cfg':
        inner['init_cfg'] = dict(type='Pretrained', checkpoint=path)
    else:
        (outer if place == 'backbone' else model)['pretrained'] = path
    outer.update(dict(inner, type='mmstepnet.StepResNetV1c')
                 if place == 'ours' else
                 dict(type='mmstepnet.StepBackbone', backbone=inner))
    attention = dict(type='StepNet', init_step=1.0)
    model = build(dict(outer, attention=attention), **model)
    x = torch.randn(2, 3, 32, 32)
    for found, expected in zip(model.backbone(x), plain(x), strict=True):
        torch.testing.assert_close(found, expected)
    assert any('step' in name for name, _ in model.backbone.named_parameters())


@MODELS.register_module(force=True)
class Joints(nn.Sequential):
    """Takes the joints of a person in each frame, as DSTFormer does."""

    def __init__(self):
        super().__init__(nn.Flatten(0, 1), nn.Linear(3, 8), nn.Sequential(
            *(Adds(nn.Linear(8, 8)) for _ in range(2))))


def test_a_backbone_of_other_inputs():
    """Whose inputs cannot be made up: the config says what it takes."""
    config = dict(type='mmstepnet.Joints')
    with pytest.raises(ValueError, match='give example='):
        StepBackbone(config)
    model = StepBackbone(config, example=(2, 4, 17, 3), layout='NLC')
    assert all(map(steps_of, model[2]))
    assert model(torch.rand(3, 4, 17, 3)).shape == (12, 17, 8)
