"""Which blocks carry the attention, and in which backbone."""

from pkgutil import resolve_name

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.hub import get_config
from mmengine.registry import MODELS, init_default_scope

from mmstepnet.attentions import StepNet
from projects.reproduction.block_selection import (
    backbone_names,
    check_structure,
    choose_blocks,
    with_stepnet,
)


def test_choice_keeps_the_networks_order():
    names = list('abcdef')
    stiffness = torch.tensor([1., 5., 0., 2., 4., 3.])
    assert choose_blocks(names, stiffness, 3) == ['b', 'e', 'f']
    assert choose_blocks(names, stiffness, 3, 'least-stiff') == [
        'a', 'c', 'd']
    for count in (0, 6):
        with pytest.raises(ValueError, match='5 of the 6'):
            choose_blocks(names, stiffness, count)
    assert choose_blocks(names, stiffness, 6, 'least-stiff') == names
    with pytest.raises(ValueError, match='7 blocks'):
        choose_blocks(names, stiffness, 7, 'random')
    with pytest.raises(ValueError, match='stiff'):
        choose_blocks(names, stiffness, 2, 'most')


def test_random_blocks_know_nothing_of_stiffness():
    """And are the same again."""
    names = [f'layer1.{i}' for i in range(50)]
    rising, falling = np.arange(1., 51), np.arange(50., 0, -1)
    chosen = choose_blocks(names, rising, 20, 'random')
    assert chosen == choose_blocks(names, falling, 20, 'random')
    assert chosen == sorted(set(chosen), key=names.index)
    assert len(chosen) == 20
    # The mean of 20 places is within three deviations of the middle.
    assert abs(np.mean([names.index(name) for name in chosen]) - 24.5) < 7.6


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


@pytest.mark.parametrize('name', [
    'mmpretrain.models.ResNet', 'mmstepnet.models.StepResNetCIFAR'])
def test_classes_as_types(name):
    """As in a config of the new style, and as its dump names them."""
    plain = dict(depth=20, attention=None)
    assert with_stepnet(plain | dict(type=resolve_name(name)), ['a']
                        ) == with_stepnet(plain | dict(type=name), ['a'])


def test_weights_that_do_not_fit_are_named():
    build = MODELS.build
    plain = build(dict(type='mmpretrain.ResNet', depth=50, deep_stem=True))
    ours = build(dict(
        type='mmstepnet.StepResNet', depth=50, host='mmpretrain'))
    with pytest.raises(ValueError, match='stem.0.conv.weight is .32, 3, 3'):
        check_structure(plain, ours)
