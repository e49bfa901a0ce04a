import copy
import pickle

import pytest
import torch
import torch.nn as nn

from mmstepnet.attentions import SE, Plain, StepNet, choose_step
from mmstepnet.steps import ResidualStep
from tests.utils import perturb, seeded


@pytest.mark.parametrize(
    'attention',
    [
        pytest.param(None, id='none'),
        pytest.param(Plain(8), id='Plain'),
        pytest.param(SE(8), id='SE'),
        pytest.param(StepNet(8), id='StepNet'),
    ],
)
@pytest.mark.parametrize(
    'activation',
    [
        pytest.param(None, id='linear'),
        pytest.param(nn.ReLU(inplace=True), id='ReLU'),
    ],
)
def test_step_is_the_equation(attention, activation):
    """Observers are told of it, until they leave; copies have none."""
    x, c = seeded(2, 5, 8, 6, 7)
    step, seen = ResidualStep(attention, activation), []
    norm = perturb(nn.BatchNorm2d(8)).eval()
    perturb(step).eval()
    f = norm(c)
    delta = None if attention is None else choose_step(attention, x, f)
    expected = x + f * (1 if delta is None else delta)
    assert (expected < 0).any()
    if activation is not None:
        expected = expected.clamp(min=0)
    handle = step.observe(lambda *told: seen.append(told))
    out = step(x, c, norm)
    torch.testing.assert_close(out, expected)
    ((module, told_x, told_f, told_delta, told),) = seen
    assert module is step and told_x is x and told is out
    torch.testing.assert_close(told_f, f)
    if attention is None or isinstance(attention, Plain):
        assert told_delta is None
    else:
        torch.testing.assert_close(told_delta, delta)
    for twin in copy.deepcopy(step), pickle.loads(pickle.dumps(step)):
        assert not twin._observers
    handle.remove()
    step(x, c, norm)
    assert len(seen) == 1
