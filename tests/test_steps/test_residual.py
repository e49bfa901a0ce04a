import copy
import pickle

import pytest
import torch
import torch.nn as nn

from mmstepnet.attentions import SE, Plain, StepNet, choose_step
from mmstepnet.steps import ResidualStep
from tests.utils import perturb


def states(channels=8, **kwargs):
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(5, channels, 6, 7, generator=generator).to(**kwargs)
            for _ in range(2)]


@pytest.mark.parametrize('attention', [None, Plain(8), SE(8), StepNet(8)])
@pytest.mark.parametrize('activation', [None, nn.ReLU(inplace=True)])
def test_step_is_the_equation(attention, activation):
    x, c = states()
    norm = perturb(nn.BatchNorm2d(8)).eval()
    step = ResidualStep(attention, activation)
    if attention is not None:
        perturb(attention).eval()
    f = norm(c)
    expected = x + f * (
        1 if attention is None else choose_step(attention, x, f))
    if activation is not None:
        expected = expected.clamp(min=0)
    torch.testing.assert_close(step(x, c, norm), expected)


@pytest.mark.parametrize('attention', [None, SE(8)])
def test_observer_sees_the_step_before_and_after_the_activation(attention):
    x, c = states()
    step = ResidualStep(attention, nn.ReLU(inplace=True))
    seen = []

    def observer(module, x_t, f, delta, out):
        assert module is step
        seen.append([t if t is None else t.clone()
                     for t in (x_t, f, delta, out)])

    handle = step.observe(observer)
    out = step(x, c)
    (x_t, f, delta, returned), = seen
    assert torch.equal(x_t, x) and torch.equal(f, c)
    assert (delta is None) == (attention is None)
    delta = 1 if delta is None else delta
    x_next = x + c * delta
    assert (x_next < 0).any()
    torch.testing.assert_close(returned, x_next.relu())
    assert torch.equal(returned, out)
    handle.remove()
    step(x, c)
    assert len(seen) == 1


def test_copies_are_not_observed():
    step = ResidualStep()
    step.observe(print)
    for twin in copy.deepcopy(step), pickle.loads(pickle.dumps(step)):
        assert not twin._observers
