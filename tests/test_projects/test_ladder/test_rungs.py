"""The rungs of the cheap ladder: what is put in, and what is trained."""

import pytest
import torch

import mmstepnet
from projects.ladder.networks import CIFARResNet, untrained
from projects.ladder.rungs import RUNGS, last_norm, put_in
from tests.utils import perturb, seeded

X = torch.zeros(1, 3, 32, 32)
BLOCKS = ['layer1.0', 'layer1.1', 'layer2.1', 'layer3.1']
GATE = 'step.attention.'
NORMS = {'bn2.weight', 'bn2.bias'}
SCALE = {GATE + 'weight'}
STEPNET = {
    GATE + name
    for name in ('pair_weight', 'bn.weight', 'bn.bias', 'ie_weight', 'ie_bias')
}
HEAD = {'linear.weight', 'linear.bias'}


@pytest.mark.parametrize(
    'name, in_blocks, head',
    [
        pytest.param('stepnet', STEPNET, False, id='stepnet'),
        pytest.param('layer-scale', SCALE, False, id='layer-scale'),
        pytest.param('norms', NORMS, False, id='norms'),
        pytest.param(
            'layer-scale-block', SCALE, False, id='layer-scale-block'
        ),
        pytest.param(
            'sigmoid-bias', {GATE + 'ie_bias'}, False, id='sigmoid-bias'
        ),
        pytest.param('head', set(), True, id='head'),
        pytest.param('norms-head', NORMS, True, id='norms-head'),
        pytest.param('layer-scale-head', SCALE, True, id='layer-scale-head'),
        pytest.param('stepnet-head', STEPNET, True, id='stepnet-head'),
    ],
)
def test_a_rung_trains_what_it_names(name, in_blocks, head):
    model = CIFARResNet(14)
    parameters = put_in(model, RUNGS[name], BLOCKS, X)
    names = {
        key
        for key, p in model.named_parameters()
        if any(p is one for one in parameters)
    }
    assert names == {
        f'{block}.{key}' for block in BLOCKS for key in in_blocks
    } | (HEAD if head else set())
    assert len(names) == len(parameters)
    assert names == {
        key for key, p in model.named_parameters() if p.requires_grad
    }


@pytest.mark.parametrize(
    'name, numbers',
    [
        # 7 blocks: 3 of 16 channels, 2 of 32, 2 of 64.
        ('stepnet', 6 * 240),
        ('layer-scale', 240),
        ('norms', 2 * 240),
        ('layer-scale-block', 7),
        ('sigmoid-bias', 240),
        ('head', 650),
    ],
)
def test_numbers_of_resnet20(name, numbers):
    model = CIFARResNet(20)
    blocks = mmstepnet.insert_steps(CIFARResNet(20), example=X)
    parameters = put_in(model, RUNGS[name], blocks, X)
    assert sum(p.numel() for p in parameters) == numbers


@pytest.mark.parametrize('name', RUNGS)
def test_a_rung_starts_as_the_network_that_it_is_put_into(name):
    model = perturb(CIFARResNet(14)).eval()
    x = seeded(4, 3, 32, 32)
    before = model(x)
    put_in(model, RUNGS[name], BLOCKS, X)
    # IEBN as cited and SE start at the step of 1, too.
    torch.testing.assert_close(model(x), before, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize('name', ['resnet14', 'resnet18'])
def test_the_last_norm_scales_the_branch(name):
    """f is doubled where γ and β are, also in torchvision's block."""
    block = perturb(untrained(name)).double().eval().layer1[1]
    x = 100 + seeded(2, block.conv1.in_channels, 4, 4).double()

    def scale(factor):
        for p in last_norm(block).parameters():
            p *= factor
        return block(x) - x

    with torch.no_grad():
        f = scale(1e-3)
        assert 0.01 < f.abs().max() < 50  # so that ReLU does nothing
        torch.testing.assert_close(scale(2), 2 * f)
