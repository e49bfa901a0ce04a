from functools import partial

import pytest
import torch
import torch.nn as nn
from mmpretrain.models import ResNet as PretrainResNet

from mmstepnet import models
from mmstepnet.models import StepResNetCIFAR
from tests.utils import perturb, run, same_tensors

StepResNet = partial(models.StepResNet, host='mmpretrain')


def host_pair(depth, host):
    if host == 'mmpretrain':
        theirs = PretrainResNet(depth, out_indices=(0, 1, 2, 3))
    else:
        theirs = pytest.importorskip('mmdet.models').ResNet(
            depth, norm_eval=False)
    ours = models.StepResNet(
        depth, attention=None, out_indices=(0, 1, 2, 3), norm_eval=False,
        host=host)
    perturb(theirs)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


@pytest.mark.parametrize('training', [True, False])
@pytest.mark.parametrize('depth, host', [(18, 'mmpretrain'),
                                         (50, 'mmpretrain'), (50, 'mmdet')])
def test_plain_equals_the_host(depth, host, training):
    ours, theirs = host_pair(depth, host)
    x = torch.randn(2, 3, 64, 96)
    results = [run(model.train(training) or model, x)
               for model in (ours, theirs)]
    for got, expected in zip(*results):
        same_tensors(got, expected, exact=True)


@pytest.mark.parametrize('depth', [18, 34, 50, 101, 152])
def test_keys_are_torchvisions(depth):
    torchvision = pytest.importorskip('torchvision')
    with torch.device('meta'):
        theirs = getattr(torchvision.models, f'resnet{depth}')()
    ours = StepResNet(depth)
    expected = {
        k: v.shape
        for k, v in theirs.state_dict().items() if not k.startswith('fc.')
    }
    got = {k: v.shape for k, v in ours.state_dict().items()}
    extra = {k for k in got if k not in expected}
    assert {k: got[k] for k in got if k not in extra} == expected
    assert extra and all('.step.attention.' in k for k in extra)


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


def carriers(**kwargs):
    model = StepResNet(18, **kwargs)
    return [name for name, block in model.residual_blocks()
            if block.step.attention is not None]


def test_which_blocks_carry_the_attention():
    every = [f'layer{s}.{i}' for s in (1, 2, 3, 4) for i in (0, 1)]
    projecting = ['layer2.0', 'layer3.0', 'layer4.0']
    se = dict(type='SE')
    assert carriers(attention=None) == []
    assert carriers(attention=se) == every
    assert carriers() == [n for n in every if n not in projecting]
    assert carriers(first_block=True) == every
    assert carriers(attention=se, first_block=False) == carriers()
    assert carriers(blocks=['layer2.0', 'layer4']) == ['layer2.0', 'layer4.1']
    assert carriers(
        blocks=['layer4'], first_block=True) == ['layer4.0', 'layer4.1']


@pytest.mark.parametrize('depth', [18, 50])
@pytest.mark.parametrize('contract', [False, True])
def test_dilated_as_in_mmsegmentation(depth, contract):
    """At an output stride of 8, as under DeepLabV3 and PSPNet."""
    backbones = pytest.importorskip('mmseg.models.backbones')
    setting = dict(strides=(1, 2, 1, 1), dilations=(1, 1, 2, 4),
                   contract_dilation=contract)
    theirs = backbones.ResNet(
        depth=depth, norm_cfg=dict(type='BN'), norm_eval=False, **setting)
    perturb(theirs)
    ours = models.StepResNet(
        depth, attention=None, norm_cfg=dict(type='BN'), norm_eval=False,
        host='mmseg', **setting)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 3, 33, 48)
    results = [run(model.train() or model, x) for model in (ours, theirs)]
    assert results[0][0][3].shape[2:] == (5, 6)
    for got, expected in zip(*results):
        same_tensors(got, expected, exact=True)


@pytest.mark.parametrize('preact', [False, True])
@pytest.mark.parametrize('kwargs', [
    dict(depth=18),
    dict(depth=50),
    dict(depth=50, deep_stem=True, avg_down=True),
    dict(depth=34, drop_path_rate=0.2),
])
def test_checkpointing_changes_nothing(kwargs, preact):
    x = torch.randn(2, 3, 48, 64)
    pair = [StepResNet(**kwargs, preact=preact, with_cp=with_cp)
            for with_cp in (False, True)]
    pair[1].load_state_dict(perturb(pair[0]).state_dict())
    results = []
    for model in pair:
        torch.manual_seed(0)
        results.append(run(model.train(), x))
    for got, expected in zip(*results):
        same_tensors(got, expected)


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


def test_gates_that_cannot_leave_their_start_are_named(recwarn):
    """A frozen stage freezes its attentions too."""
    warm = dict(type='StepNet', init_step=1.0)
    with pytest.warns(UserWarning, match='layer1.0, layer1.1, layer2.1 '
                      'are frozen.*blocks='):
        model = StepResNet(18, attention=warm, frozen_stages=2)
    assert model.train() is model
    assert not model.layer2[1].step.attention.bn.training
    assert model.layer3[1].step.attention.bn.training
    recwarn.clear()
    StepResNet(18, attention=warm, frozen_stages=1,
               blocks=['layer2', 'layer3', 'layer4'])
    StepResNet(18, attention=warm, frozen_stages=0)
    StepResNet(18, frozen_stages=2)  # a trained gate acts, frozen or not
    assert not recwarn.list


@pytest.mark.parametrize('kwargs, error, message', [
    (dict(depth=18, zero_init_residual=True, preact=True), ValueError,
     'zero_init_residual'),
    (dict(depth=20), KeyError, 'depth 20'),
    (dict(depth=50, dcn=None), TypeError, 'dcn'),
    (dict(depth=50, num_stages=5), AssertionError, ''),
    (dict(depth=18, blocks='layer9'), ValueError, 'layer9'),
    (dict(depth=18, attention='SE'), TypeError, "got 'SE'")])
def test_refused(kwargs, error, message):
    """By the host, but where it would build something else."""
    with pytest.raises(error, match=message):
        StepResNet(**kwargs)
