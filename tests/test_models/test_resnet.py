from functools import partial

import pytest
import torch
import torch.nn as nn

from mmstepnet import models
from mmstepnet.models import StepResNetCIFAR
from tests.utils import perturb

StepResNet = partial(models.StepResNet, host='mmpretrain')


@pytest.mark.parametrize('depth', [18, 34, 50, 101, 152])
def test_keys_are_torchvisions(depth):
    torchvision = pytest.importorskip('torchvision')
    with torch.device('meta'):
        theirs = getattr(torchvision.models, f'resnet{depth}')()
    got = {k: v.shape for k, v in StepResNet(depth).state_dict().items()}
    ours = {k for k in got if '.step.attention.' in k}
    assert ours and {k: got[k] for k in got.keys() - ours} == {
        k: v.shape for k, v in theirs.state_dict().items()
        if not k.startswith('fc.')}


@pytest.mark.parametrize('preact', [False, True])
@pytest.mark.parametrize('attention', [None, 'SE', 'CBAM', 'StepNet'])
def test_parameter_counts_of_the_paper(preact, attention):
    """Table 1, ResNet-164 with its classifier, CIFAR-10 and CIFAR-100.

    CBAM's are of the reference form; the paper has 1.92 and 1.94.
    """
    paper = {None: (1.70, 1.73), 'SE': (1.91, 1.93), 'CBAM': (1.91, 1.93),
             'StepNet': (1.75, 1.77)}
    cfg = attention and dict(type=attention)
    model = StepResNetCIFAR(164, attention=cfg, preact=preact)
    count = sum(p.numel() for p in model.parameters())
    for classes, expected in zip((10, 100), paper[attention]):
        assert round((count + 256 * classes + classes) / 1e6, 2) == expected


def test_which_blocks_carry_the_attention():
    def carriers(**kwargs):
        model = StepResNet(18, **kwargs)
        return [name for name, block in model.residual_blocks()
                if block.step.attention is not None]

    every = [f'layer{s}.{i}' for s in (1, 2, 3, 4) for i in (0, 1)]
    assert carriers(attention=None) == []
    assert carriers(attention=dict(type='SE')) == every
    assert carriers() == [n for n in every if n not in (
        'layer2.0', 'layer3.0', 'layer4.0')]
    assert carriers(
        blocks=['layer1.1', 'layer4'], first_block=True) == every[1:2] + (
            every[-2:])


def test_preactivation_against_a_written_out_network():
    """One bottleneck stage, evaluated line by line."""
    model = perturb(StepResNet(50, attention=None, preact=True)).eval()

    def bn(norm, x):
        scale = norm.weight / (norm.running_var + norm.eps).sqrt()
        return (x - norm.running_mean[:, None, None]
                ) * scale[:, None, None] + norm.bias[:, None, None]

    x = torch.randn(2, 3, 64, 64)
    y = model.maxpool(model.conv1(x))
    for _, block in model.residual_blocks():
        a = bn(block.norm1, y).relu()
        shortcut = y if block.downsample is None else block.downsample(a)
        b = bn(block.norm2, block.conv1(a)).relu()
        y = shortcut + block.conv3(bn(block.norm3, block.conv2(b)).relu())
    expected = bn(model.bn_last, y).relu()
    torch.testing.assert_close(model(x)[0], expected, rtol=1e-4, atol=1e-5)
    assert isinstance(model.bn1, nn.Identity)
    assert all(len(b.downsample) == 1 for _, b in model.residual_blocks()
               if b.downsample is not None)
