from functools import partial

import mmdet.models
import numpy as np
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from mmengine.model import convert_sync_batchnorm
from scipy.special import expit

from mmstepnet import models
from mmstepnet.models import IEBN, StepResNetCIFAR
from tests.utils import not_on_torch_21, perturb, same, seeded

StepResNet = partial(models.StepResNet, host='mmpretrain')
CFG = dict(type='mmstepnet.IEBN')


@pytest.mark.parametrize('training', [False, True])
@pytest.mark.parametrize(
    'dtype, atol',
    [
        (torch.float64, 1e-12),
        (torch.float32, 1e-5),
        (torch.bfloat16, 1e-1),
        pytest.param(
            torch.float16,
            2e-2,
            marks=not_on_torch_21('has no float16 batch_norm on CPU'),
        ),
    ],
)
def test_is_the_formula(dtype, atol, training):
    """Also of maps whose sum is beyond float16; it starts as in the paper."""
    layer = perturb(IEBN(4)).train(training)
    layer = layer.double() if dtype == torch.float64 else layer
    x = (8 * seeded(3, 4, 160, 160, seed=3) + 4).to(dtype)
    assert x.double().sum((2, 3)).max() > torch.finfo(torch.float16).max
    w = {k: v.double().numpy() for k, v in layer.state_dict().items()}
    a = x.double().numpy()
    normed = F.batch_norm(
        x.double(),
        layer.running_mean.double(),
        layer.running_var.double(),
        training=training,
    ).numpy()
    gate = expit(w['ie_weight'] * a.mean((2, 3)) + w['ie_bias'])
    expected = (gate * w['weight'])[..., None, None] * normed + w['bias'][
        :, None, None
    ]
    out = layer(x)
    assert out.dtype == dtype
    np.testing.assert_allclose(
        out.detach().double().numpy(),
        expected,
        rtol=1e-2 * (atol > 1e-4),
        atol=atol,
    )
    fresh, plain = IEBN(4), nn.BatchNorm2d(4)
    torch.testing.assert_close(fresh(x.float()), plain(x.float()) / (1 + np.e))


@pytest.mark.parametrize(
    'build',
    [
        pytest.param(
            partial(mmdet.models.ResNet, 18, base_channels=8),
            id='ResNet-18 of MMDetection',
        ),
        pytest.param(
            partial(StepResNet, 50, attention=None, base_channels=8),
            id='StepResNet-50',
        ),
        pytest.param(
            partial(StepResNetCIFAR, 20, attention=None, preact=True),
            id='pre-activation ResNet-20',
        ),
    ],
)
@pytest.mark.parametrize('training', [False, True])
def test_plain_checkpoints_load_and_compute_the_same(build, training):
    plain = perturb(build(norm_cfg=dict(type='BN')))
    model = build(norm_cfg=dict(CFG, init_step=1.0))
    model.init_weights()
    missing, unexpected = model.load_state_dict(
        plain.state_dict(), strict=False
    )
    assert missing and not unexpected
    assert all('.ie_' in f'.{key}' for key in missing)
    x = seeded(2, 3, 64, 64).double()
    plain.double().train(training), model.double().train(training)
    same(model(x)[-1], plain(x)[-1])


def test_projections_keep_a_plain_norm():
    """A reading, which the parameter counts of Table 1 allow."""
    model = StepResNet(
        50,
        attention=None,
        norm_cfg=dict(CFG, init_step=1.0, eps=1e-3, requires_grad=False),
    )
    plain = {
        name: m
        for name, m in model.named_modules()
        if type(m) is nn.BatchNorm2d
    }
    assert list(plain) == [f'layer{k}.0.downsample.1' for k in (1, 2, 3, 4)]
    assert all(
        m.eps == 1e-3 and not m.weight.requires_grad for m in plain.values()
    )


@pytest.mark.parametrize(
    'convert',
    [
        pytest.param(convert_sync_batchnorm, id='mmengine'),
        pytest.param(
            torch.nn.SyncBatchNorm.convert_sync_batchnorm, id='PyTorch'
        ),
    ],
)
def test_conversion_to_sync_bn_is_refused(convert):
    with pytest.raises(RuntimeError, match='leave sync_bn out'):
        convert(nn.Sequential(IEBN(4)))
    layer, x = IEBN(4), seeded(2, 4, 3, 3)
    assert not hasattr(layer, 'qconfig')  # others may ask for it
    torch.testing.assert_close(torch.jit.trace(layer.eval(), x)(x), layer(x))
