"""A constant step against timm's, torchvision's and NFNet's own."""

import copy

import pytest
import torch
import torch.nn as nn
from torch.autograd import gradgradcheck

from mmstepnet import (
    calibrate,
    insert_steps,
    mark_only_steps_as_trainable,
    step_parameters,
)
from tests.utils import perturb, steps_of


def vit():
    models = pytest.importorskip('timm.models.vision_transformer')
    return models.VisionTransformer(
        32,
        8,
        num_classes=3,
        embed_dim=24,
        depth=2,
        num_heads=2,
        init_values=1e-5,
    )


def convnext():
    models = pytest.importorskip('torchvision.models.convnext')
    return models.ConvNeXt([models.CNBlockConfig(16, None, 2)], num_classes=3)


def nfnet():
    models = pytest.importorskip('timm.models.nfnet')
    return models.NormFreeNet(
        models.NfCfg((2, 2), (16, 24), skipinit=True), num_classes=3
    )


@pytest.mark.parametrize(
    'build, name, shared',
    [
        (vit, 'gamma', False),
        (convnext, 'layer_scale', False),
        (nfnet, 'skipinit_gain', True),
    ],
)
def test_equal_to_the_hosts_own(build, name, shared):
    """Outputs and gradients, where ours stand and theirs are all 1."""
    theirs = perturb(build()).double().train()
    ours = copy.deepcopy(theirs)
    blocks = insert_steps(ours, 'LayerScale', shared=shared)
    constants = {
        key: p
        for key, p in theirs.named_parameters()
        if name in key and any(key.startswith(f'{block}.') for block in blocks)
    }
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
            step.weight.grad, constant.grad.flatten(), rtol=1e-9, atol=1e-9
        )


KINDS = {
    'a channel': ({}, 2 * 64 + 128 + 256 + 512),
    'a block': (dict(shared=True), 5),
    'fixed': (dict(learned=False), 0),
}


@pytest.fixture(params=KINDS)
def stepped(request):
    """A ResNet with a constant in each block, and their trained numbers."""
    resnet = pytest.importorskip('torchvision.models.resnet')
    options, numbers = KINDS[request.param]
    model = resnet.ResNet(resnet.BasicBlock, [2, 1, 1, 1], num_classes=3)
    insert_steps(model, 'LayerScale', init_step=0.5, **options)
    return perturb(model).double(), numbers


def test_trained_alone(stepped):
    model, numbers = stepped
    state = copy.deepcopy(model.state_dict())
    if numbers:
        _, gates = step_parameters(model)
        assert sum(p.numel() for p in gates['params']) == numbers
    else:
        with pytest.raises(ValueError, match='no step whose attention has'):
            step_parameters(model)
    assert mark_only_steps_as_trainable(model) == numbers
    images = torch.rand(4, 3, 32, 32, dtype=torch.float64)
    assert calibrate(model, [images]) == 0  # it has no statistics
    model.train()(images)
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name]), name


def test_traced(stepped):
    model, _ = stepped
    images = torch.rand(4, 3, 32, 32, dtype=torch.float64)
    traced = torch.fx.symbolic_trace(model.eval())
    assert torch.equal(traced(images), model(images))


def test_second_derivatives(stepped):
    block = stepped[0].layer1[1].eval()
    state = torch.rand(1, 64, 2, 2, dtype=torch.float64, requires_grad=True)
    assert gradgradcheck(block, state, fast_mode=True)
