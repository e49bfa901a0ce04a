"""Statistics of gates, against those of all pooled vectors at once."""

import copy
from collections import UserDict

import pytest
import torch
import torch.nn as nn
from torchvision.models import resnet18

import mmstepnet
from mmstepnet.steps import examples


@pytest.fixture
def model():
    model = resnet18(num_classes=3)
    mmstepnet.insert_steps(model)
    return model


def batches():
    """Of different sizes and brightness: most spread lies between them."""
    torch.manual_seed(1)
    return [torch.rand(n, 3, 64, 64) + n for n in (2, 5, 3)]


def pooled(model):
    """z of the first step of layer2, formed the long way."""
    block, seen = model.layer2[1], []

    def keep(step, inputs):
        x, f = inputs[:2]  # a step that is hooked is given f
        w = step.attention.pair_weight
        seen.append(w[:, 0] * x.mean((2, 3)) + w[:, 1] * (x + f).mean((2, 3)))

    handle = block.step.register_forward_pre_hook(keep)
    with torch.no_grad():
        for images in batches():
            model(images)
    handle.remove()
    return torch.cat(seen)


def test_statistics_are_those_of_all_vectors(model):
    """And nothing else changes."""
    z = pooled(copy.deepcopy(model).eval())
    model.layer3.eval()
    modes = [m.training for m in model.modules()]
    before = copy.deepcopy(model.state_dict())
    assert mmstepnet.calibrate(model, batches()) == 5
    bn = model.layer2[1].step.attention.bn
    torch.testing.assert_close(bn.running_mean, z.mean(0))
    torch.testing.assert_close(bn.running_var, z.var(0), rtol=1e-3, atol=1e-6)
    assert bn.num_batches_tracked == 3
    assert [m.training for m in model.modules()] == modes
    changed = {
        name
        for name, t in model.state_dict().items()
        if not torch.equal(t, before[name])
    }
    assert all('attention.bn.' in name for name in changed)
    assert mmstepnet.calibrate(model, batches()) == 0  # they have them now


@pytest.mark.parametrize(
    'wrap, forward',
    [
        pytest.param(lambda t: (t,), None, id='tuple'),
        pytest.param(lambda t: [t], None, id='list'),
        pytest.param(lambda t: dict(x=t), None, id='dict'),
        pytest.param(
            lambda t: UserDict(x=t), None, id='UserDict'
        ),  # as transformers' tokenizers give
        pytest.param(
            lambda t: [t, torch.arange(len(t))], None, id='images and labels'
        ),  # images and labels
        pytest.param(
            lambda t: 2 * t,
            lambda network, t: network(t / 2),
            id='with forward=',
        ),
    ],
)
def test_what_a_batch_may_be(model, wrap, forward):
    other = copy.deepcopy(model)
    mmstepnet.calibrate(model, batches())
    mmstepnet.calibrate(other, map(wrap, batches()), forward=forward)
    for name, t in model.state_dict().items():
        assert torch.equal(t, other.state_dict()[name])


class Needs(nn.Module):
    """Called in other ways than with one tensor."""

    def __init__(self, network):
        super().__init__()
        self.network = network


class Two(Needs):
    def forward(self, x, times):
        return self.network(x * times[:, None, None, None])


class Any(Needs):
    def forward(self, *args):
        return self.network(args[0] * args[-1][:, None, None, None])


class ByChoice(Needs):
    def forward(self, x=None, times=None):
        return self.network(x)


@pytest.mark.parametrize('kind', [Two, Any])
def test_integers_that_the_model_takes_are_no_labels(model, kind):
    other = copy.deepcopy(model)
    pairs = [(t, 2 + torch.arange(len(t))) for t in batches()]
    mmstepnet.calibrate(kind(model), pairs)
    mmstepnet.calibrate(other, [t * n[:, None, None, None] for t, n in pairs])
    for name, t in model.state_dict().items():
        assert torch.equal(t, other.state_dict()[name])


def test_labels_that_are_left_out_are_said_once(model, caplog):
    examples._say_that_labels_are_left_out.cache_clear()
    pairs = [(t, torch.arange(len(t))) for t in batches()]
    mmstepnet.calibrate(model, pairs)
    mmstepnet.measure_stiffness(model, pairs)
    assert [r.message for r in caplog.records] == [
        'ResNet is called with the images of each batch, without the labels'
    ]


IMAGES, LABELS = torch.zeros(3, 3, 32, 32), torch.arange(3)


@pytest.mark.parametrize(
    'wrap, batch, words',
    [
        pytest.param(
            nn.Sequential,
            (IMAGES, LABELS, LABELS),
            'a batch of 3 tensors',
            id='three tensors',
        ),
        pytest.param(
            nn.Sequential,
            (IMAGES, torch.eye(3)),
            'a batch of 2 tensors',
            id='no labels',
        ),
        pytest.param(
            nn.Sequential,
            dict(image=IMAGES, label=LABELS),
            'of image, label',
            id='dict',
        ),
        pytest.param(
            ByChoice,
            (IMAGES, LABELS),
            'which argument the second one is',
            id='a second argument',
        ),
    ],
)
def test_a_batch_of_more_than_the_model_takes(model, wrap, batch, words):
    with pytest.raises(ValueError, match=f'cannot be .*{words}.*forward='):
        mmstepnet.calibrate(wrap(model), [batch])


def test_frozen_attentions_get_statistics_once(model):
    """As those of a teacher, unless they have some."""
    other = copy.deepcopy(model)
    assert mmstepnet.calibrate(other, batches()) == 5
    model.requires_grad_(False)
    seen = model.layer2[1].step.attention.bn
    seen.num_batches_tracked.fill_(1)
    assert mmstepnet.calibrate(model, batches()) == 4
    assert not seen.running_mean.any()
    model.layer2[1].step.attention = other.layer2[1].step.attention
    for name, t in model.state_dict().items():
        assert torch.equal(t, other.state_dict()[name])


def test_a_frozen_gate_that_does_not_run_is_left_alone(model):
    both = nn.ModuleDict(
        dict(student=model, teacher=copy.deepcopy(model).requires_grad_(False))
    )
    assert (
        mmstepnet.calibrate(
            both, batches(), forward=lambda both, x: both['student'](x)
        )
        == 5
    )
    assert not both['teacher'].layer2[1].step.attention.bn.running_mean.any()


@pytest.mark.parametrize(
    'given, words',
    [
        pytest.param(lambda: [], 'saw 0 pooled vectors', id='no batch'),
        pytest.param(
            lambda: [*batches(), torch.full((2, 3, 64, 64), torch.nan)],
            'NaN or infinite features',
            id='NaN',
        ),
        pytest.param(
            lambda: [torch.ones(4, 3, 64, 64)],
            'same value for every image',
            id='equal images',
        ),
    ],
)
def test_refusals_change_no_norm(model, given, words):
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=words):
        mmstepnet.calibrate(model, given())
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm1d)]
    assert norms and not any(m._forward_pre_hooks for m in norms)
    assert all(
        torch.equal(t, before[k]) for k, t in model.state_dict().items()
    )
