"""SE, ECA and CBAM against timm's and MMPretrain's modules."""

import pytest
import torch
import torch.nn as nn

from mmstepnet.attentions import CBAM, ECA, SE, choose_step
from tests.utils import perturb

C = 64


@pytest.mark.parametrize('training', [False, True])
@pytest.mark.parametrize('name', ['SE', 'SE of mmpretrain', 'ECA', 'CBAM'])
def test_same_features(name, training, maps):
    if name == 'SE of mmpretrain':
        utils = pytest.importorskip('mmpretrain.models.utils')
        ours, theirs = SE(C), utils.SELayer(C, squeeze_channels=C // 16)
    else:
        layers = pytest.importorskip('timm.layers')
        cbam = pytest.importorskip('timm.layers.cbam')
        ours, theirs = {
            'SE': lambda: (SE(C), layers.SEModule(C, rd_channels=C // 16)),
            'ECA': lambda: (ECA(C), layers.EcaModule(C)),
            'CBAM': lambda: (
                CBAM(C),
                cbam.CbamModule(C, rd_channels=C // 16, mlp_bias=True),
            ),
        }[name]()
    perturb(ours).train(training)
    theirs.train(training)
    # Both declare their weights in one order.
    for kind in (nn.Module.parameters, nn.Module.buffers):
        for own, place in zip(kind(ours), kind(theirs), strict=True):
            place.data.copy_(own.data.view_as(place))
    x, f = maps(4, C, 9, 7)

    torch.testing.assert_close(
        f * choose_step(ours, x, f), theirs(f), rtol=1e-5, atol=1e-5
    )
