import mmpretrain.models
import pytest
import torch
import torchvision

from mmstepnet.models import StepResNeXt
from tests.utils import perturb


def test_plain_form_is_the_hosts():
    host = mmpretrain.models.ResNeXt(50, out_indices=(0, 1, 2, 3))
    perturb(host).eval()
    model = StepResNeXt(50, attention=None, out_indices=(0, 1, 2, 3)).eval()
    model.load_state_dict(host.state_dict())
    images = torch.rand(2, 3, 70, 54)
    for ours, theirs in zip(model(images), host(images)):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_mmdetections_arguments_give_its_network():
    """Its zoo writes base_width for width_per_group."""
    ResNeXt = pytest.importorskip('mmdet.models').ResNeXt
    arguments = dict(depth=50, groups=8, base_width=6, num_stages=4,
                     out_indices=(0, 1, 2, 3), frozen_stages=1,
                     norm_cfg=dict(type='BN', requires_grad=True),
                     norm_eval=True, style='pytorch')
    host = perturb(ResNeXt(**arguments))
    host.eval()  # which returns None
    model = StepResNeXt(attention=None, **arguments).eval()
    model.load_state_dict(host.state_dict())
    images = torch.rand(2, 3, 70, 54)
    for ours, theirs in zip(model(images), host(images)):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_torchvision_checkpoint_lacks_the_attention_only():
    theirs = perturb(torchvision.models.resnext50_32x4d()).eval()
    model = StepResNeXt(
        50, attention=dict(type='StepNet', init_step=1.0)).eval()
    keys = model.load_state_dict(theirs.state_dict(), strict=False)
    assert keys.unexpected_keys == ['fc.weight', 'fc.bias']
    assert all('.step.attention.' in key for key in keys.missing_keys)
    images = torch.rand(1, 3, 64, 64)
    pooled = model(images)[0].mean((2, 3))
    theirs.fc = torch.nn.Identity()
    expected = theirs(images)
    scale = expected.abs().max()
    torch.testing.assert_close(
        pooled / scale, expected / scale, rtol=0, atol=1e-6)


def test_every_parameter_learns():
    model = perturb(StepResNeXt(50, groups=8, width_per_group=8)).train()
    assert model.layer1[0].conv2.groups == 8
    out, = model(torch.randn(2, 3, 64, 64))
    (out * torch.randn_like(out)).sum().backward()
    assert all(p.grad.any() for p in model.parameters())


def test_builds_from_a_config():
    from mmengine.registry import MODELS
    model = MODELS.build(dict(type='mmstepnet.StepResNeXt', depth=101))
    assert len(model.layer3) == 23


@pytest.mark.parametrize('kwargs, message', [
    (dict(depth=18), 'StepResNeXt has no depth 18.*50, 101, 152'),
    (dict(depth=50, preact=True), 'preact'),
])
def test_wrong_arguments(kwargs, message):
    with pytest.raises(ValueError, match=message):
        StepResNeXt(**kwargs)
