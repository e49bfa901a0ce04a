from functools import partial

import mmdet.models
import numpy as np
import pytest
import torch
import torch.nn as nn
from mmengine.model import convert_sync_batchnorm

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


@pytest.mark.parametrize('build', [
    partial(mmdet.models.ResNet, 18),
    partial(StepResNet, 50, attention=None),
    partial(StepResNetCIFAR, 20, attention=None, preact=True),
], ids=['mmdet', 'resnet50', 'preact'])
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


def test_projections_keep_a_plain_norm():
    """A reading, which the parameter counts of Table 1 allow."""
    model = StepResNet(50, attention=None, norm_cfg=dict(
        CFG, init_step=1.0, eps=1e-3, requires_grad=False))
    norms = {name: m for name, m in model.named_modules()
             if isinstance(m, nn.BatchNorm2d)}
    plain = {n: m for n, m in norms.items() if not isinstance(m, IEBN)}
    assert len(norms) == 1 + 3 * 16 + 4 and len(plain) == 4
    assert all('downsample' in name for name in plain)
    assert all(m.eps == 1e-3 and not m.weight.requires_grad
               for m in plain.values())


@pytest.mark.parametrize('convert', [
    convert_sync_batchnorm,
    torch.nn.SyncBatchNorm.convert_sync_batchnorm,
])
def test_conversion_to_sync_bn_is_refused(convert):
    with pytest.raises(RuntimeError, match='leave sync_bn out'):
        convert(nn.Sequential(IEBN(4)))
    layer, x = IEBN(4), images(2, 4, 3, 3)
    assert not hasattr(layer, 'qconfig')  # others may ask for it
    torch.testing.assert_close(torch.jit.trace(layer.eval(), x)(x), layer(x))
