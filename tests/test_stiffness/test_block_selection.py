"""Stiffness of blocks against a grid of thresholds."""

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.hub import get_config
from mmengine.registry import MODELS, init_default_scope

from mmstepnet.attentions import StepNet
from mmstepnet.stiffness import total_stiffness_proportion
from mmstepnet.stiffness.block_selection import (
    backbone_names,
    block_stiffness,
    check_structure,
    stiffest_blocks,
    with_stepnet,
)

STAGES = torch.tensor([0, 0, 0, 1, 1, 2])


def test_area_of_thresholds():
    """Eq. 5's condition, block by block, on a grid of degrees."""
    nsi = torch.rand(5, 6, generator=torch.Generator().manual_seed(0))
    got = block_stiffness(nsi, STAGES).numpy()
    zeta, stages = nsi.double().numpy(), STAGES.numpy()
    step = 2e-3
    m = np.arange(step / 2, 2, step)
    expected = np.zeros(6)
    for t in range(6):
        for sample in zeta:
            mean = sample[stages == stages[t]].mean()
            # The condition is a product of one in M1 and one in M2.
            expected[t] += ((sample[t] >= mean * (1 + m)).sum()
                            * (sample[t] >= m).sum()) * step**2 / len(zeta)
    np.testing.assert_allclose(got, expected, atol=5e-3)
    assert got[5] == 0 and (got[:5] > 0).all()


def test_sums_to_the_total_proportion():
    nsi = torch.rand(7, 6, generator=torch.Generator().manual_seed(1)).double()
    total = total_stiffness_proportion(nsi, STAGES)
    torch.testing.assert_close(
        block_stiffness(nsi, STAGES).sum() / 6, total.mean())


def test_blocks_at_rest():
    assert (block_stiffness(torch.zeros(2, 6), STAGES) == 0).all()


def test_choice_keeps_the_networks_order():
    names = list('abcdef')
    stiffness = torch.tensor([1., 5., 0., 2., 4., 3.])
    assert stiffest_blocks(names, stiffness, 3) == ['b', 'e', 'f']
    for count in (0, 6):
        with pytest.raises(ValueError, match='5 of the 6'):
            stiffest_blocks(names, stiffness, count)


def test_names():
    assert backbone_names(['backbone.layer1.2', 'layer3.17']) == [
        'layer1.2', 'layer3.17']
    with pytest.raises(ValueError, match='stages.0.1'):
        backbone_names(['backbone.stages.0.1'])


@pytest.mark.parametrize('config', [
    'mmpretrain::resnet/resnet50_8xb32_in1k.py',
    'mmpretrain::resnet/resnetv1c50_8xb32_in1k.py',
    'mmpretrain::resnet/resnetv1d50_8xb32_in1k.py',
    'mmpretrain::resnext/resnext50-32x4d_8xb32_in1k.py',
    'mmdet::faster_rcnn/faster-rcnn_r50_fpn_1x_coco.py',
])
def test_hosts_backbones_with_stepnet(config, tmp_path):
    """Written over the host's config, the plain weights fit."""
    cfg = get_config(config)
    init_default_scope(cfg.default_scope)
    changes = with_stepnet(cfg.model.backbone, ['layer2.1'])
    path = tmp_path / 'chosen.py'
    path.write_text(f'_base_ = [{config!r}]\n' + Config(dict(
        model=dict(backbone=changes))).pretty_text)
    proposed = Config.fromfile(path).model.backbone
    plain, ours = MODELS.build(cfg.model.backbone), MODELS.build(proposed)
    check_structure(plain, ours)
    missing, unexpected = ours.load_state_dict(plain.state_dict(), False)
    assert not unexpected
    assert all('layer2.1.step.attention' in name for name in missing)
    assert isinstance(ours.layer2[1].step.attention, StepNet)
    plain.eval(), ours.eval()
    ours.layer2[1].step.attention = None
    image = torch.randn(1, 3, 64, 64)
    for a, b in zip(plain(image), ours(image)):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize('config', [
    'mmpretrain::resnet/resnet50_8xb16_cifar10.py',
    'mmpretrain::seresnet/seresnet50_8xb32_in1k.py',
    'mmpretrain::regnet/regnetx-400mf_8xb128_in1k.py',
])
def test_backbones_of_another_structure_are_refused(config):
    backbone = get_config(config).model.backbone
    with pytest.raises(ValueError, match=f"'{backbone.type}' has no counter"):
        with_stepnet(backbone, ['layer2.1'])


def test_weights_that_do_not_fit_are_named():
    build = MODELS.build
    plain = build(dict(type='mmpretrain.ResNet', depth=50, deep_stem=True))
    ours = build(dict(type='mmstepnet.StepResNet', depth=50))
    with pytest.raises(ValueError, match='stem.0.conv.weight is .32, 3, 3'):
        check_structure(plain, ours)
