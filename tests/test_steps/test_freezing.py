"""Training the steps alone, against the network that is frozen by hand."""

import copy
import multiprocessing
import pickle

import pytest
import torch
import torch.nn as nn
from torch.optim.swa_utils import update_bn
from torchvision.models import resnet18
from torchvision.ops import FrozenBatchNorm2d

import mmstepnet
from mmstepnet.steps import ResidualStep, fused
from tests.test_steps.cases import randomise


@pytest.fixture
def model():
    torch.manual_seed(0)
    model = resnet18(num_classes=4)
    mmstepnet.insert_steps(model)
    randomise(*(m.attention for m in model.modules()
                if isinstance(m, ResidualStep)))
    return model


def steps_of(model):
    return {name for name, _ in model.named_parameters()
            if '.step.attention.' in name}


def train(model, steps=2):
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(
        [p for p in model.parameters() if p.requires_grad], 0.1)
    for _ in range(steps):
        model.train()  # as trainers do
        optimizer.zero_grad()
        model(torch.rand(4, 3, 64, 64)).square().mean().backward()
        optimizer.step()


def test_only_steps_and_what_is_named_change(model):
    count = mmstepnet.mark_only_steps_as_trainable(model, ['fc'])
    wanted = steps_of(model) | {'fc.weight', 'fc.bias'}
    trainable = {n for n, p in model.named_parameters() if p.requires_grad}
    assert trainable == wanted
    assert count == sum(dict(model.named_parameters())[n].numel()
                        for n in wanted)
    before = copy.deepcopy(model.state_dict())
    train(model)
    changed = {n for n, t in model.state_dict().items()
               if not torch.equal(t, before[n])}
    statistics = {n for n in before if '.attention.bn.' in n}
    assert changed == wanted | {n for n in statistics if 'bn.' in n}


def test_equal_to_a_network_that_is_frozen_by_hand(model):
    """Its norms exchanged for torchvision's frozen ones."""
    by_hand = copy.deepcopy(model)
    for name, module in list(by_hand.named_modules()):
        if isinstance(module, nn.BatchNorm2d) and 'attention' not in name:
            frozen = FrozenBatchNorm2d(module.num_features)
            frozen.load_state_dict(module.state_dict(), strict=False)
            parent, _, key = name.rpartition('.')
            setattr(by_hand.get_submodule(parent), key, frozen)
    for name, p in by_hand.named_parameters():
        p.requires_grad_('attention' in name)
    mmstepnet.mark_only_steps_as_trainable(model)
    train(model)
    train(by_hand)
    found, wanted = model.state_dict(), by_hand.state_dict()
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name])


def test_the_fused_step_is_taken(model, calls):
    mmstepnet.mark_only_steps_as_trainable(model)
    model.train()(torch.rand(2, 3, 64, 64))
    assert len(calls) == 5


def outputs(pickled, x):
    model = pickle.loads(pickled).train()
    with fused(False):  # which path small maps take differs by process
        out = model(x)
    return out.detach().numpy(), [
        type(m).__name__ for m in model.modules()
        if isinstance(m, nn.BatchNorm2d) and not m.training]


def test_copies_and_other_processes_keep_statistics(model):
    mmstepnet.mark_only_steps_as_trainable(model)
    x, kept = torch.rand(2, 3, 64, 64), 20
    for other in (copy.deepcopy(model).train(),
                  pickle.loads(pickle.dumps(model)).train()):
        before = copy.deepcopy(other.bn1.state_dict())
        other(x)
        assert all(torch.equal(t, before[k])
                   for k, t in other.bn1.state_dict().items())
    with multiprocessing.get_context('spawn').Pool(1) as pool:
        found, names = pool.apply(outputs, (pickle.dumps(model), x))
    with fused(False):
        expected = copy.deepcopy(model).train()(x).detach()
    torch.testing.assert_close(torch.from_numpy(found), expected)
    assert names == ['BatchNorm2d'] * kept


def test_statistics_set_anew_are_kept_too(model):
    """``update_bn`` first forgets those of all BNs."""
    mmstepnet.mark_only_steps_as_trainable(model)
    before = copy.deepcopy(model.state_dict())
    update_bn([torch.rand(4, 3, 64, 64)], model)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]) == (
            '.attention.bn.running' not in name
            and '.attention.bn.num' not in name), name
    model.bn1.running_mean.fill_(float('nan'))
    model.bn1.reset_parameters()
    assert (model.bn1.running_mean == 0).all()


def test_norms_in_eval_mode_fold_as_others(model):
    plain = copy.deepcopy(model).eval()
    mmstepnet.mark_only_steps_as_trainable(model)
    folded, wanted = mmstepnet.fold(model), mmstepnet.fold(plain)
    assert not any(isinstance(m, nn.BatchNorm2d) for m in folded.modules())
    x = torch.rand(2, 3, 64, 64)
    torch.testing.assert_close(folded(x), wanted(x))


def test_undone(model):
    classes = [type(m) for m in model.modules()]
    before = sum(p.numel() for p in model.parameters())
    mmstepnet.mark_only_steps_as_trainable(model)
    assert mmstepnet.mark_only_steps_as_trainable(
        model, unfreeze=True) == before
    assert [type(m) for m in model.modules()] == classes
    assert model.train().bn1.training


def test_removed_steps_free_the_norms(model):
    mmstepnet.mark_only_steps_as_trainable(model)
    mmstepnet.remove_steps(model)
    assert type(model.bn1) is nn.BatchNorm2d and model.train().bn1.training
    assert mmstepnet.mark_only_steps_as_trainable(
        model, unfreeze=True) == sum(p.numel() for p in model.parameters())


def test_converted_to_syncbn_before(model):
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    mmstepnet.mark_only_steps_as_trainable(model)
    assert not model.train().bn1.training
    assert isinstance(model.bn1, nn.SyncBatchNorm)


def test_modules_in_wrappers_have_the_names_of_files():
    model = resnet18()
    mmstepnet.insert_steps(model)
    model.layer4 = nn.DataParallel(model.layer4)
    mmstepnet.mark_only_steps_as_trainable(model, ['layer4.1.conv1'])
    trained = [weight for name, weight in model.named_parameters()
               if weight.requires_grad and name.endswith('conv1.weight')]
    assert trained == [model.layer4.module[1].conv1.weight]


def test_errors():
    with pytest.raises(ValueError, match='ResNet has no steps'):
        mmstepnet.mark_only_steps_as_trainable(resnet18())
    model = resnet18()
    mmstepnet.insert_steps(model)
    for names in ('fc', ['']):
        with pytest.raises(TypeError, match='must be a list of names'):
            mmstepnet.mark_only_steps_as_trainable(model, names)
    with pytest.raises(ValueError, match="'head', and the model has no such"):
        mmstepnet.mark_only_steps_as_trainable(model, ['head'])
