"""A constant step against timm's, torchvision's and NFNet's own."""

import copy

import pytest
import torch
import torch.nn as nn

from mmstepnet import insert_steps
from tests.test_steps.insertion import steps_of
from tests.utils import perturb


def vit():
    models = pytest.importorskip('timm.models.vision_transformer')
    return models.VisionTransformer(
        32, 8, num_classes=3, embed_dim=24, depth=2, num_heads=2,
        init_values=1e-5)


def convnext():
    models = pytest.importorskip('torchvision.models.convnext')
    return models.ConvNeXt(
        [models.CNBlockConfig(16, None, 2)], num_classes=3)


def nfnet():
    models = pytest.importorskip('timm.models.nfnet')
    return models.NormFreeNet(models.NfCfg(
        (2, 2), (16, 24), skipinit=True), num_classes=3)


@pytest.mark.parametrize('build, name, shared', [
    (vit, 'gamma', False), (convnext, 'layer_scale', False),
    (nfnet, 'skipinit_gain', True)])
def test_equal_to_the_hosts_own(build, name, shared):
    """Outputs and gradients, where ours stand and theirs are all 1."""
    theirs = perturb(build()).double().train()
    ours = copy.deepcopy(theirs)
    blocks = insert_steps(ours, 'LayerScale', shared=shared)
    constants = {
        key: p for key, p in theirs.named_parameters() if name in key
        and any(key.startswith(f'{block}.') for block in blocks)}
    steps = [step.attention for step in steps_of(ours).values()]
    for step, (key, constant) in zip(steps, constants.items(), strict=True):
        step.weight.data.copy_(constant.data.flatten())
        nn.init.ones_(ours.get_parameter(key))
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    outs = [model(x) for model in (theirs, ours)]
    torch.testing.assert_close(*outs, rtol=1e-12, atol=1e-12)
    for out in outs:
        out.square().sum().backward()
    for step, constant in zip(steps, constants.values(), strict=True):
        assert constant.grad.any()
        torch.testing.assert_close(
            step.weight.grad, constant.grad.flatten(), rtol=1e-9, atol=1e-9)
