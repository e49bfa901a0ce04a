"""StepNet as a plain ``nn.Module`` under torchvision's pyramid."""

import pytest
import torch

from mmstepnet.models import StepResNet
from tests.utils import perturb

utils = pytest.importorskip('torchvision.models.detection.backbone_utils')


@pytest.mark.parametrize('attention', [
    None, dict(type='StepNet', init_step=1.0)
])
def test_equals_torchvisions_own_backbone(attention):
    """With its weights; a warm-started gate changes nothing."""
    theirs = perturb(
        utils.resnet_fpn_backbone(
            backbone_name='resnet18', weights=None, trainable_layers=5,
            norm_layer=torch.nn.BatchNorm2d)).eval()
    backbone = StepResNet(depth=18, out_indices=(0, 1, 2, 3),
                          attention=attention, host='mmpretrain')
    missing = backbone.load_state_dict(theirs.body.state_dict(), strict=False)
    assert not missing.unexpected_keys
    assert all('.step.attention.' in key for key in missing.missing_keys)
    images = torch.randn(2, 3, 64, 96)
    with torch.no_grad():
        expected = theirs(images)
        got = theirs.fpn({
            str(i): x for i, x in enumerate(backbone.eval()(images))})
    assert got.keys() == expected.keys()
    for key, level in got.items():
        assert level.std() > 0
        torch.testing.assert_close(level, expected[key], rtol=1e-4, atol=1e-5)
