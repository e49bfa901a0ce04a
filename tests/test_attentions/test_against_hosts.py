"""SE, ECA and CBAM against timm's and MMPretrain's modules."""

import pytest
import torch
from mmpretrain.models.utils import SELayer

from mmstepnet.attentions import CBAM, ECA, SE, choose_step
from mmstepnet.attentions.record import KEY
from tests.utils import perturb

C = 64


def copy(source, target):
    """Copy weights in the order in which both modules declare them."""
    source, target = (
        {k: v for k, v in m.state_dict().items() if not k.endswith(KEY)}
        for m in (source, target))
    assert [v.numel() for v in source.values()
            ] == [v.numel() for v in target.values()]
    for value, place in zip(source.values(), target.values()):
        place.copy_(value.view_as(place))


@pytest.mark.parametrize('training', [False, True])
@pytest.mark.parametrize('name', ['SE', 'SE of mmpretrain', 'ECA', 'CBAM'])
def test_same_features(name, training, maps):
    if name == 'SE of mmpretrain':
        ours, theirs = SE(C), SELayer(C, squeeze_channels=C // 16)
    else:
        layers = pytest.importorskip('timm.layers')
        cbam = pytest.importorskip('timm.layers.cbam')
        ours, theirs = {
            'SE': lambda: (SE(C), layers.SEModule(C, rd_channels=C // 16)),
            'ECA': lambda: (ECA(C), layers.EcaModule(C)),
            'CBAM': lambda: (CBAM(C),
                             cbam.CbamModule(
                                 C, rd_channels=C // 16, mlp_bias=True)),
        }[name]()
    perturb(ours).train(training)
    theirs.train(training)
    copy(ours, theirs)
    x, f = maps(4, C, 9, 7)

    torch.testing.assert_close(
        f * choose_step(ours, x, f), theirs(f), rtol=1e-5, atol=1e-5)
