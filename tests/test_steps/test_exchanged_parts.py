"""Parts of blocks that somebody exchanges after insertion."""

import copy
from functools import partial

import pytest
import torch
import torch.nn as nn
from torchvision.models import resnet18

from mmstepnet import insert_steps, remove_steps
from tests.test_steps.described_blocks import Deep

from .insertion import perturb

LEAKY = partial(nn.LeakyReLU, 0.1)


def swap_children(module, other=LEAKY):
    """The usual way to exchange activations, which goes by names."""
    for name, child in module.named_children():
        if isinstance(child, nn.ReLU):
            setattr(module, name, other())
        else:
            swap_children(child, other)


def swap_unique(model):
    """The other one, which sees a shared module once."""
    for name, child in list(model.named_modules()):
        if isinstance(child, nn.ReLU):
            owner, _, name = name.rpartition('.')
            setattr(model.get_submodule(owner), name, LEAKY())


def test_an_activation_that_is_exchanged_later():
    """It is applied, once, also where it has weights."""
    x = torch.randn(2, 3, 32, 32)
    plain = perturb(resnet18()).eval()
    swap_unique(plain)
    wanted = plain(x)
    for swap in (swap_children, swap_unique):
        model = resnet18().eval()
        model.load_state_dict(plain.state_dict())
        insert_steps(model)
        swap(model)
        torch.testing.assert_close(model(x), wanted)
        remove_steps(model)
        torch.testing.assert_close(model(x), wanted)
    model = resnet18().eval()
    model.load_state_dict(plain.state_dict())
    insert_steps(model)
    keys = set(model.state_dict())
    for block in (model.layer1[0], model.layer1[1]):
        block.relu = nn.PReLU(init=0.1)
    model(x)
    assert set(model.state_dict()) - keys == {
        'layer1.0.relu.weight', 'layer1.1.relu.weight'}
    swap_unique(model)
    torch.testing.assert_close(model(x), wanted)


@pytest.mark.parametrize('other', [nn.Identity(), nn.Dropout(0.0), nn.Tanh()])
def test_a_stochastic_depth_that_is_exchanged_later(other):
    """As by who switches it off in a part of a network."""
    plain = Deep(6)
    model = nn.Sequential(copy.deepcopy(plain))
    insert_steps(model)
    x = torch.randn(2, 5, 6)
    torch.testing.assert_close(model(x), x)
    plain.drop = plain.drop2 = model[0].drop = model[0].drop2 = other
    wanted = plain(x)
    assert (wanted - x).abs().max() > 0.1
    model = copy.deepcopy(model)
    for _ in range(2):
        torch.testing.assert_close(model(x), wanted)
    remove_steps(model)
    torch.testing.assert_close(model(x), wanted)
    assert type(model[0].drop2) is type(other)


def test_a_stochastic_depth_that_is_taken_away():
    """By None, which hosts such as timm may have in its place."""
    plain = Deep(6)
    model = copy.deepcopy(plain)
    insert_steps(model)
    plain.drop = model.drop = None
    x = torch.randn(2, 5, 6)
    wanted = plain(x)
    assert (wanted - x).abs().max() > 0.1
    torch.testing.assert_close(model(x), wanted)


def test_keys_where_every_activation_becomes_one_with_weights():
    """No key or parameter of a step's own copy, before a forward either."""
    model = resnet18()
    insert_steps(model)
    swap_children(model, nn.PReLU)
    twin = copy.deepcopy(model)
    keys = list(model.state_dict())
    assert [n for n, _ in twin.named_parameters() if 'relu' in n
            or 'activation' in n] == [k for k in keys if 'relu' in k] != []
    assert not any('step.activation' in key for key in keys)
    model(torch.rand(2, 3, 32, 32))
    assert list(model.state_dict()) == keys
