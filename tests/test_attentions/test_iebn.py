from functools import partial

import mmdet.models
import mmpretrain.models
import numpy as np
import pytest
import torch
import torch.nn as nn
from mmcv.cnn import build_norm_layer
from mmengine.model import convert_sync_batchnorm
from torch.autograd import gradcheck
from torch.func import functional_call

from mmstepnet import models
from mmstepnet.models import IEBN, StepResNetCIFAR
from tests.utils import not_on_torch_21, perturb, seeded

StepResNet = partial(models.StepResNet, host='mmpretrain')
CFG = dict(type='mmstepnet.IEBN')


def images(*shape):
    return 2 * seeded(*shape, seed=3) + 1


@pytest.mark.parametrize('training', [False, True])
def test_is_the_formula(training):
    layer = perturb(IEBN(12)).train(training)
    x = images(4, 12, 5, 7)
    w = {k: v.double().numpy() for k, v in layer.state_dict().items()}
    a = x.double().numpy()
    mean, var = w['running_mean'], w['running_var']
    if training:
        mean, var = a.mean((0, 2, 3)), a.var((0, 2, 3))
    gate = 1 / (1 + np.exp(-(w['ie_weight'] * a.mean((2, 3)) + w['ie_bias'])))
    normed = (a - mean[:, None, None]) / np.sqrt(var + 1e-5)[:, None, None]
    expected = ((gate * w['weight'])[..., None, None] * normed +
                w['bias'][:, None, None])
    np.testing.assert_allclose(
        layer(x).detach().numpy(), expected, rtol=0, atol=1e-5)


def test_starts_as_the_paper_says():
    layer = IEBN(3)
    x = images(2, 3, 4, 4)
    plain = torch.nn.BatchNorm2d(3)
    torch.testing.assert_close(layer(x), plain(x) / (1 + np.e))


def test_gradients():
    layer = perturb(IEBN(3)).double()
    names, parameters = zip(*layer.named_parameters())
    inputs = tuple(
        t.detach().clone().requires_grad_()
        for t in (images(2, 3, 3, 2).double(), *parameters))
    assert gradcheck(
        lambda x, *p: functional_call(layer, dict(zip(names, p)), x), inputs)


@pytest.mark.parametrize('dtype, atol', [
    pytest.param(
        torch.float16, 2e-2,
        marks=not_on_torch_21('has no float16 batch_norm on CPU')),
    (torch.bfloat16, 1e-1),
])
def test_half_precision(dtype, atol):
    layer = perturb(IEBN(4)).eval()
    x = (4 * images(2, 4, 160, 160)).to(dtype)
    assert x.float().sum((2, 3)).max() > torch.finfo(torch.float16).max
    out = layer(x)
    assert out.dtype == dtype
    torch.testing.assert_close(
        out.float(), layer(x.float()), rtol=1e-2, atol=atol)


def test_statistics_and_buffers_are_those_of_bn():
    layer, plain = perturb(IEBN(5)), torch.nn.BatchNorm2d(5)
    keys = layer.load_state_dict(plain.state_dict(), strict=False)
    assert keys.missing_keys == ['ie_weight', 'ie_bias']
    assert not keys.unexpected_keys
    layer(images(2, 5, 4, 4))
    plain(images(2, 5, 4, 4))
    for name, buffer in plain.named_buffers():
        torch.testing.assert_close(layer.get_buffer(name), buffer)


@pytest.mark.parametrize('default_scope', ['mmdet', 'mmpretrain', 'mmengine'])
def test_mmcv_builds_it(default_scope):
    from mmengine.registry import DefaultScope
    with DefaultScope.overwrite_default_scope(default_scope):
        name, layer = build_norm_layer(
            dict(CFG, requires_grad=False, momentum=0.2), 6, postfix=2)
    assert name == 'bn2'
    assert isinstance(layer, IEBN)
    assert layer.momentum == 0.2
    assert not any(p.requires_grad for p in layer.parameters())


@pytest.mark.parametrize('build', [
    lambda **kwargs: mmpretrain.models.ResNet(18, **kwargs),
    lambda **kwargs: mmdet.models.ResNet(18, **kwargs),
    lambda **kwargs: StepResNet(18, attention=None, **kwargs),
    lambda **kwargs: StepResNet(50, attention=None, **kwargs),
    lambda **kwargs: StepResNetCIFAR(20, attention=None, **kwargs),
    lambda **kwargs: StepResNetCIFAR(
        20, attention=None, preact=True, **kwargs),
], ids=['mmpretrain', 'mmdet', 'resnet18', 'resnet50', 'cifar', 'preact'])
@pytest.mark.parametrize('training', [False, True])
def test_plain_checkpoints_load_and_compute_the_same(build, training):
    plain = build(norm_cfg=dict(type='BN'))
    model = build(norm_cfg=dict(CFG, init_step=1.0))
    plain.init_weights()
    model.init_weights()
    perturb(plain)
    keys = model.load_state_dict(plain.state_dict(), strict=False)
    assert not keys.unexpected_keys
    assert keys.missing_keys
    assert all('.ie_' in f'.{key}' for key in keys.missing_keys)
    for network in (plain, model):
        network.train(training)
    x = seeded(2, 3, 64, 64)
    expected, out = plain(x)[-1], model(x)[-1]
    scale = expected.detach().abs().max()
    torch.testing.assert_close(
        out / scale, expected / scale, rtol=0, atol=1e-6)


def test_every_parameter_learns():
    model = perturb(StepResNet(18, norm_cfg=CFG)).train()
    out, = model(images(2, 3, 64, 64))
    (out * torch.randn_like(out)).sum().backward()
    assert all(p.grad.any() for p in model.parameters())


@pytest.mark.parametrize('norm_cfg', [
    dict(CFG, init_step=1.0, eps=1e-3, requires_grad=False),
    CFG,
])
def test_projections_keep_a_plain_norm(norm_cfg):
    model = StepResNet(50, attention=None, norm_cfg=norm_cfg)
    projections = [
        block.downsample[-1] for _, block in model.residual_blocks()
        if block.downsample is not None
    ]
    assert [type(norm) for norm in projections] == [torch.nn.BatchNorm2d] * 4
    assert {norm.eps for norm in projections} == {norm_cfg.get('eps', 1e-5)}
    assert {norm.weight.requires_grad for norm in projections
            } == {norm_cfg.get('requires_grad', True)}
    others = [
        m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)
        and not any(m is norm for norm in projections)
    ]
    assert len(others) == 1 + 3 * 16
    assert all(isinstance(norm, IEBN) for norm in others)


def test_norm_eval_freezes_its_statistics():
    model = StepResNet(18, norm_cfg=CFG, norm_eval=True).train()
    model(images(1, 3, 64, 64))
    assert model.bn1.num_batches_tracked == 0


@pytest.mark.parametrize('convert', [
    convert_sync_batchnorm,
    torch.nn.SyncBatchNorm.convert_sync_batchnorm,
])
def test_conversion_to_sync_bn_is_refused(convert):
    with pytest.raises(RuntimeError, match='leave sync_bn out'):
        convert(torch.nn.Sequential(IEBN(4)))


def test_tools_that_look_for_a_qconfig():
    """Only the conversion to SyncBN is refused."""
    model = perturb(StepResNetCIFAR(20, attention=None, norm_cfg=CFG)).eval()
    assert not hasattr(IEBN(4), 'qconfig')
    x = images(2, 3, 16, 16)
    traced = torch.jit.trace(model, x)
    torch.testing.assert_close(traced(x)[0], model(x)[0])
    layer = IEBN(4)
    layer.qconfig = 'set'
    assert layer.qconfig == 'set'
    with pytest.raises(RuntimeError, match='cannot be converted'):
        convert_sync_batchnorm(nn.Sequential(layer))


def test_wrong_arguments():
    with pytest.raises(ValueError, match='init_step.*got -1'):
        IEBN(4, init_step=-1)
    with pytest.raises(TypeError, match='affine'):
        IEBN(4, affine=False)
