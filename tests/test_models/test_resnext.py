import pytest
import torch
import torchvision

from mmstepnet.models import StepResNeXt
from tests.utils import perturb


@pytest.mark.parametrize('host, names, groups', [
    ('mmpretrain', ('width_per_group', 'base_width'), 32),
    ('mmdet', ('base_width', 'width_per_group'), 1),
])
def test_plain_form_is_the_hosts(host, names, groups):
    """By either host's name of the width, and with its default of groups."""
    theirs = pytest.importorskip(f'{host}.models').ResNeXt
    outs = dict(depth=50, out_indices=(0, 1, 2, 3), groups=8)
    host_ = perturb(theirs(**outs, **{names[0]: 6}))
    host_.eval()  # which returns None
    images = torch.rand(2, 3, 70, 54)
    for name in names:
        model = StepResNeXt(attention=None, host=host, **outs, **{name: 6})
        model.load_state_dict(host_.state_dict())
        for ours, expected in zip(model.eval()(images), host_(images)):
            assert torch.equal(ours, expected)
    assert StepResNeXt(50, host=host).groups == groups


def test_torchvision_checkpoint_lacks_the_attention_only():
    theirs = perturb(torchvision.models.resnext50_32x4d()).eval()
    model = StepResNeXt(
        50, attention=dict(type='StepNet', init_step=1.0),
        host='mmpretrain').eval()
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
    model = perturb(StepResNeXt(
        50, groups=8, width_per_group=8, host='mmpretrain')).train()
    assert model.layer1[0].conv2.groups == 8
    out, = model(torch.randn(2, 3, 64, 64))
    (out * torch.randn_like(out)).sum().backward()
    assert all(p.grad.any() for p in model.parameters())


@pytest.mark.parametrize('kwargs, message', [
    (dict(depth=18), 'StepResNeXt has no depth 18.*50, 101, 152'),
    (dict(depth=50, preact=True), 'preact'),
])
def test_wrong_arguments(kwargs, message):
    with pytest.raises(ValueError, match=message):
        StepResNeXt(**kwargs, host='mmpretrain')
