"""A frozen gate normalises by its running statistics and leaves them."""

import copy

import pytest
import torch
import torch.nn as nn
from torch.optim.swa_utils import AveragedModel, update_bn

from mmstepnet import steps
from mmstepnet.attentions import CBAM, SRM, OursMeanStd, StepNet
from tests.test_steps.cases import build, inputs

GATES = StepNet, SRM, OursMeanStd, CBAM


class Pair(nn.Module):
    """A step, called with its norm on pairs of maps."""

    def __init__(self, step, norm):
        super().__init__()
        self.step, self.norm = step, norm

    def forward(self, maps):
        return self.step(*maps, self.norm)


def maps(samples):
    return inputs((samples, 8, 6, 6), torch.float32)[:2]


def statistics(step):
    return {name: t.clone() for name, t in step.named_buffers()}


@pytest.fixture(params=[True, False], ids=['fused', 'reference'])
def path(request):
    with steps.fused(request.param):
        yield request.param


@pytest.mark.parametrize('kind', GATES, ids=lambda kind: kind.__name__)
def test_it_stays_the_function_that_it_is(kind, path, calls):
    """In training mode, however many batches pass; and one image passes.

    One that is frozen in part trains on, as does the norm before it.
    """
    pair = Pair(*build(kind, 8))
    pair.norm.eval()
    if kind is not CBAM:
        with pytest.raises(ValueError, match='at least 2 images'):
            pair(maps(1))
    pair.step.requires_grad_(False)
    x, c = maps(5)
    expected, buffers = pair.eval()((x, c)), statistics(pair.step)
    pair.step.train()
    for samples in (4, 1, 4):
        pair(maps(samples))
    out = pair((x, c.requires_grad_()))
    assert torch.equal(out, expected)
    out.sum().backward()
    assert c.grad.abs().sum() > 0
    torch.testing.assert_close(statistics(pair.step), buffers, rtol=0, atol=0)
    assert bool(calls) == (path and kind is StepNet)
    last = list(pair.step.parameters())[-1].requires_grad_()
    pair.train()((x, c)).square().sum().backward()
    assert last.grad is not None and pair.norm.num_batches_tracked == 1
    assert not any(torch.equal(t, buffers[name]) for name, t in statistics(
        pair.step).items() if 'running' in name)


@pytest.mark.parametrize('kind', [StepNet, SRM, OursMeanStd])
def test_update_bn_sets_statistics_of_the_data(kind, path):
    """It forgets those that there were; MMEngine's averages are frozen."""
    step, norm = build(kind, 8)
    batches = [(maps(4), ) for _ in range(3)]
    average = AveragedModel(step, use_buffers=True).requires_grad_(False)
    average.update_parameters(step)
    found = []
    for model in (average, step):
        pair = Pair(model, copy.deepcopy(norm)).eval()
        update_bn(batches, pair)
        assert not any(m.training for m in pair.modules())
        found.append(list(statistics(pair.step).values())[-3:])
    torch.testing.assert_close(*found)
    assert found[0][-1] == 3
