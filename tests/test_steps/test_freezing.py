"""Training the steps alone, against the network that is frozen by hand."""

import copy
import pickle

import pytest
import torch
import torch.nn as nn
from torchvision.models import resnet18
from torchvision.ops import FrozenBatchNorm2d

import mmstepnet
from tests.utils import Adds, randomise, steps_of


@pytest.fixture
def model():
    model = resnet18(num_classes=4)
    mmstepnet.insert_steps(model)
    randomise(*(step.attention for step in steps_of(model).values()))
    return model.double()  # float32 rounds by more than the tolerance


def train(model, steps=2):
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(
        [p for p in model.parameters() if p.requires_grad], 1e-3
    )
    for _ in range(steps):
        model.train()  # as trainers do
        optimizer.zero_grad()
        model(torch.rand(4, 3, 64, 64).double()).square().mean().backward()
        optimizer.step()


def changed(model, before):
    return {
        name
        for name, t in model.state_dict().items()
        if not torch.equal(t, before[name])
    }


def test_equal_to_a_network_that_is_frozen_by_hand(model):
    """Its norms exchanged for torchvision's frozen ones; and undone."""
    classes = [type(m) for m in model.modules()]
    by_hand = copy.deepcopy(model)
    for name, module in list(by_hand.named_modules()):
        if isinstance(module, nn.BatchNorm2d) and 'attention' not in name:
            frozen = FrozenBatchNorm2d(module.num_features).double()
            frozen.load_state_dict(module.state_dict(), strict=False)
            parent, _, key = name.rpartition('.')
            setattr(by_hand.get_submodule(parent), key, frozen)
    for name, p in by_hand.named_parameters():
        p.requires_grad_('attention' in name or name[:2] == 'fc')
    assert mmstepnet.mark_only_steps_as_trainable(model, ['fc']) == sum(
        p.numel() for p in by_hand.parameters() if p.requires_grad
    )
    train(model)
    train(by_hand)
    found, wanted = model.state_dict(), by_hand.state_dict()
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name])
    assert mmstepnet.mark_only_steps_as_trainable(model, unfreeze=True) == sum(
        p.numel() for p in model.parameters()
    )
    assert [type(m) for m in model.modules()] == classes
    mmstepnet.mark_only_steps_as_trainable(model)
    x = torch.rand(2, 3, 32, 32, dtype=torch.float64)
    traced = torch.fx.symbolic_trace(model.eval())
    torch.testing.assert_close(traced(x), model(x))
    mmstepnet.remove_steps(model)
    assert type(model.bn1) is nn.BatchNorm2d and model.train().bn1.training


class Codebook(nn.Module):
    """Follows what it is given, as vector quantisers do."""

    def __init__(self):
        super().__init__()
        self.register_buffer('codes', torch.zeros(8))

    def forward(self, x):
        if self.training:
            self.codes += x.mean((0, 1))
        return x + self.codes


@pytest.mark.parametrize(
    'keeps',
    [
        pytest.param(Codebook, id='a codebook'),
        pytest.param(
            lambda: nn.utils.spectral_norm(nn.Linear(8, 8)), id='spectral norm'
        ),
        pytest.param(
            lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)),
            id='spectral norm, parametrised',
        ),
        pytest.param(
            lambda: nn.InstanceNorm1d(3, track_running_stats=True),
            id='InstanceNorm',
        ),
    ],
)
def test_whatever_keeps_numbers_keeps_them(keeps):
    model = nn.Sequential(
        keeps(),
        nn.Dropout(),
        nn.Sequential(*(Adds(nn.Linear(8, 8)) for _ in range(3))),
    )
    model.register_buffer('mean', torch.zeros(8))  # as of images
    x = torch.rand(2, 3, 8)
    mmstepnet.insert_steps(model, example=x)
    mmstepnet.mark_only_steps_as_trainable(model)
    for other in (
        model,
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)) if keeps is Codebook else model,
    ):
        before = copy.deepcopy(other[0].state_dict())
        other.train()(x)
        assert all(
            torch.equal(t, before[k]) for k, t in other[0].state_dict().items()
        )
        assert other.training and other[1].training
    mmstepnet.mark_only_steps_as_trainable(model, unfreeze=True)
    model.train()(x)
    assert changed(model[0], before)


def test_a_model_without_steps_is_refused():
    with pytest.raises(ValueError, match='ResNet has no steps'):
        mmstepnet.mark_only_steps_as_trainable(resnet18())
