"""StepNet as a plain ``nn.Module`` under torchvision's pyramid."""

import pytest
import torch

from mmstepnet.models import StepResNet
from tests.utils import perturb

ops = pytest.importorskip('torchvision.ops')
utils = pytest.importorskip('torchvision.models.detection.backbone_utils')


def pyramid(fpn, backbone, images):
    return fpn({str(i): x for i, x in enumerate(backbone(images))})


def build(**kwargs):
    backbone = StepResNet(
        depth=18, out_indices=(0, 1, 2, 3), host='mmpretrain', **kwargs)
    return backbone, ops.FeaturePyramidNetwork([64, 128, 256, 512], 16)


@pytest.mark.parametrize('attention', [
    None, dict(type='StepNet', init_step=1.0)
])
def test_equals_torchvisions_own_backbone(attention):
    """With its weights; a warm-started gate changes nothing."""
    theirs = perturb(
        utils.resnet_fpn_backbone(
            backbone_name='resnet18', weights=None, trainable_layers=5,
            norm_layer=torch.nn.BatchNorm2d)).eval()
    backbone, _ = build(attention=attention)
    missing = backbone.load_state_dict(theirs.body.state_dict(), strict=False)
    assert not missing.unexpected_keys
    assert all('.step.attention.' in key for key in missing.missing_keys)
    images = torch.randn(2, 3, 64, 96)
    with torch.no_grad():
        expected = theirs(images)
        got = pyramid(theirs.fpn, backbone.eval(), images)
    assert got.keys() == expected.keys()
    for key, level in got.items():
        assert level.std() > 0
        torch.testing.assert_close(level, expected[key], rtol=1e-4, atol=1e-5)


def test_learns():
    backbone, fpn = map(perturb, build())
    levels = pyramid(fpn, backbone.train(), torch.randn(2, 3, 64, 96))
    assert [tuple(level.shape) for level in levels.values()] == [
        (2, 16, 64 >> k, 96 >> k) for k in (2, 3, 4, 5)
    ]
    sum((level * torch.randn_like(level)).mean()
        for level in levels.values()).backward()
    for name, parameter in backbone.named_parameters():
        assert parameter.grad.abs().sum() > 0, name
