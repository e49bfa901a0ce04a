from functools import partial

import pytest
import torch
import torch.nn as nn
from mmengine.registry import MODELS
from mmpretrain.models import ResNet as PretrainResNet

from mmstepnet import models
from mmstepnet.attentions import SE
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


def test_blocks_without_attention():
    with pytest.raises(ValueError, match='attention is None'):
        StepResNet(18, attention=None, blocks=['layer1'])


@pytest.mark.parametrize('cls, depth', [(StepResNet, 20), (StepResNet, '50'),
                                        (StepResNetCIFAR, 51)])
def test_unsupported_depth(cls, depth):
    with pytest.raises(ValueError, match=f'depth {depth!r}.*expected one of'):
        cls(depth)


def test_unknown_attention_lists_the_known():
    with pytest.raises(KeyError, match="'Nonsense' is unknown.*'StepNet'"):
        StepResNet(18, attention=dict(type='Nonsense'))
    with pytest.raises(TypeError, match="got 'SE'"):
        StepResNet(18, attention='SE')


def test_classes_as_types():
    """As mmengine's new-style configs write them."""
    by_class, by_name = (
        MODELS.build(dict(type=backbone, depth=20, attention=dict(type=rule)))
        for backbone, rule in ((StepResNetCIFAR, SE),
                               ('mmstepnet.StepResNetCIFAR', 'SE')))
    assert isinstance(by_class.layer1[1].step.attention, SE)
    assert by_class.state_dict().keys() == by_name.state_dict().keys()
    dumped = StepResNetCIFAR(
        20, attention=dict(type='mmstepnet.attentions.SE'))
    assert isinstance(dumped.layer1[1].step.attention, SE)
    for unknown in (nn.Conv2d, 'torch.nn.Conv2d', 'mmstepnet.Conv2d',
                    'no_such.Conv2d'):
        with pytest.raises(KeyError, match='Conv2d.* is unknown; registered'):
            StepResNetCIFAR(20, attention=dict(type=unknown))


@pytest.mark.parametrize('argument', ['dcn', 'plugins'])
def test_what_only_mmdetections_resnet_has(argument):
    with pytest.raises(TypeError, match='StepResNet over mmpretrain.*ResNet '
                       f"has no {argument}; it takes .*host='mmdet'"):
        StepResNet(50, **{argument: None})


def test_what_only_resnext_has():
    with pytest.raises(TypeError, match='groups of mmstepnet.StepResNeXt'):
        StepResNet(50, groups=32, width_per_group=4)


@pytest.mark.parametrize('host', ['mmpretrain', 'mmseg'])
@pytest.mark.parametrize('depth', [18, 50])
@pytest.mark.parametrize('contract', [False, True])
def test_dilated_as_in_mmsegmentation(depth, contract, host):
    """At an output stride of 8, as under DeepLabV3 and PSPNet."""
    backbones = pytest.importorskip('mmseg.models.backbones')
    setting = dict(strides=(1, 2, 1, 1), dilations=(1, 1, 2, 4),
                   contract_dilation=contract)
    theirs = backbones.ResNet(
        depth=depth, norm_cfg=dict(type='BN'), norm_eval=False, **setting)
    perturb(theirs)
    ours = models.StepResNet(
        depth, attention=None, out_indices=(0, 1, 2, 3), host=host, **setting)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 3, 33, 48)
    results = [run(model.train() or model, x) for model in (ours, theirs)]
    assert results[0][0][3].shape[2:] == (5, 6)
    for got, expected in zip(*results):
        same_tensors(got, expected, exact=True)


@pytest.mark.parametrize('attention', ['StepNet', 'SE', 'CBAM', 'FCA'])
def test_features_by_torch_fx(attention):
    extraction = pytest.importorskip('torchvision.models.feature_extraction')
    model = perturb(StepResNetCIFAR(20, attention=dict(type=attention)))
    traced = extraction.create_feature_extractor(model, ['layer1', 'layer3'])
    model.eval(), traced.eval()
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(traced(x)['layer3'], model(x)[-1])
    seen = []
    model.layer1.register_forward_hook(lambda *args: seen.append(args[-1]))
    model(x)
    torch.testing.assert_close(traced(x)['layer1'], seen[0])


def test_train_returns_the_model_and_keeps_frozen_stages():
    model = StepResNet(50, frozen_stages=2, norm_eval=True)
    assert model.train() is model
    for module in (model.conv1, model.bn1, model.layer1, model.layer2):
        assert module is model.conv1 or not module.training
        assert not any(p.requires_grad for p in module.parameters())
    attention = model.layer2[1].step.attention
    assert not attention.bn.training and not attention.ie_bias.requires_grad
    later = model.layer3[1].step.attention
    assert later.ie_bias.requires_grad and not later.bn.training
    assert all(p.requires_grad for p in model.layer4.parameters())


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


@pytest.mark.parametrize('depth', [20, 164])
def test_every_parameter_gets_a_gradient(depth):
    model = perturb(StepResNetCIFAR(depth, preact=True)).train()
    out = model(torch.randn(4, 3, 32, 32))
    assert [tuple(o.shape) for o in out] == [(4, out[0].shape[1], 8, 8)]
    (out[0] * torch.randn_like(out[0])).sum().backward()
    silent = [name for name, p in model.named_parameters()
              if p.grad is None or not p.grad.abs().sum() > 0]
    assert not silent


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


def test_preact_refuses_zero_init():
    with pytest.raises(ValueError, match='zero_init_residual'):
        StepResNet(18, preact=True, zero_init_residual=True)


def test_default_init_leaves_the_residual_alive():
    """The hosts' default starts with f = 0, hence no gradient for a gate."""
    model = StepResNet(18)
    model.init_weights()
    assert model.layer1[0].bn2.weight.abs().min() > 0


def test_gates_that_cannot_leave_their_start_are_named(recwarn):
    """A frozen stage freezes its attentions too."""
    warm = dict(type='StepNet', init_step=1.0)
    with pytest.warns(UserWarning, match='frozen_stages=2 .*layer1.0, '
                      'layer1.1, layer2.1, whose step.*blocks='):
        StepResNet(18, attention=warm, frozen_stages=2)
    recwarn.clear()
    StepResNet(18, attention=warm, frozen_stages=1,
               blocks=['layer2', 'layer3', 'layer4'])
    StepResNet(18, attention=warm, frozen_stages=0)
    StepResNet(18, frozen_stages=2)  # a trained gate acts, frozen or not
    assert not recwarn.list
