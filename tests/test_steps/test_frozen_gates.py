"""A frozen gate normalises by its running statistics and leaves them."""

import copy

import pytest
import torch
import torch.nn as nn
from torch.optim.swa_utils import AveragedModel, update_bn

from mmstepnet import steps
from mmstepnet.attentions import CBAM, SRM, OursMeanStd, StepNet
from tests.test_steps.cases import build, inputs

GATES = {StepNet: 'bn', SRM: 'bn', OursMeanStd: 'bn', CBAM: None}


def norms_of(module):
    return [m for m in module.modules()
            if getattr(m, 'running_mean', None) is not None]


@pytest.fixture(params=[True, False], ids=['fused', 'reference'])
def path(request):
    with steps.fused(request.param):
        yield request.param


@pytest.mark.parametrize('kind', GATES, ids=lambda kind: kind.__name__)
def test_it_stays_the_function_that_it_is(kind, path, calls):
    """In training mode, however many batches pass."""
    torch.manual_seed(0)
    step, norm = build(kind, 8)
    assert norms_of(step)
    norm.eval()
    step.requires_grad_(False)
    x, c, grad = inputs((5, 8, 6, 6), torch.float32)
    expected = step.eval()(x, c, norm)
    buffers = copy.deepcopy(dict(step.named_buffers()))
    step.train()
    for _ in range(3):
        step(*inputs((4, 8, 6, 6), torch.float32)[:2], norm)
    c.requires_grad_()
    out = step(x, c, norm)
    assert torch.equal(out, expected)
    out.backward(grad)
    assert c.grad.abs().sum() > 0
    for name, value in step.named_buffers():
        assert torch.equal(value, buffers[name]), name
    assert all(m.training for m in norms_of(step))
    assert bool(calls) == (path and kind is StepNet)


@pytest.mark.parametrize('kind', GATES, ids=lambda kind: kind.__name__)
def test_a_partly_frozen_one_trains_on(kind, path):
    torch.manual_seed(0)
    step, norm = build(kind, 8)
    step.requires_grad_(False)
    last = list(step.parameters())[-1].requires_grad_()
    before = [m.running_mean.clone() for m in norms_of(step)]
    x, c, grad = inputs((5, 8, 6, 6), torch.float32)
    step(x, c, norm).backward(grad)
    assert last.grad is not None
    assert norm.num_batches_tracked == 1  # which is no part of the gate
    for module, mean in zip(norms_of(step), before):
        assert module.num_batches_tracked == 1
        assert not torch.equal(module.running_mean, mean)


@pytest.mark.parametrize('kind', [StepNet, SRM, OursMeanStd])
def test_one_image_in_training(kind, path):
    torch.manual_seed(0)
    step, norm = build(kind, 8)
    x, c, _ = inputs((1, 8, 6, 6), torch.float32)
    with pytest.raises(ValueError, match='at least 2 images'):
        step(x, c, norm.eval())
    step.requires_grad_(False)
    out = step(x, c, norm)
    assert torch.equal(out, step.eval()(x, c, norm))


@pytest.mark.parametrize('kind', [StepNet, SRM, OursMeanStd])
def test_update_bn_sets_statistics_of_the_data(kind, path):
    """It forgets those that there were; MMEngine's averages are frozen."""
    torch.manual_seed(0)
    step, norm = build(kind, 8)
    batches = [inputs((4, 8, 6, 6), torch.float32)[:2] for _ in range(3)]
    average = AveragedModel(step, use_buffers=True).requires_grad_(False)
    average.update_parameters(step)
    step.requires_grad_(True)
    found = []
    for model in (average, step):
        pair = Pair(model, copy.deepcopy(norm).eval()).eval()
        update_bn([(maps, ) for maps in batches], pair)
        found.append(norms_of(model))
        assert not any(m.training for m in found[-1])
    for frozen, learning in zip(*found):
        assert frozen.num_batches_tracked == 3
        torch.testing.assert_close(frozen.state_dict(), learning.state_dict())


class Pair(nn.Module):
    """A step, called with its norm on pairs of maps."""

    def __init__(self, step, norm):
        super().__init__()
        self.step, self.norm = step, norm

    def forward(self, maps):
        return self.step(*maps, self.norm)


@pytest.mark.skipif(torch.__version__ < (2, 6),
                    reason='older ones break the graph there')
def test_under_torch_compile():
    step, norm = build(StepNet, 4)
    step.requires_grad_(False)
    x, c, _ = inputs((3, 4, 5, 5), torch.float32)
    torch.compiler.reset()
    compiled = torch.compile(step, backend='eager', fullgraph=True)
    torch.testing.assert_close(compiled(x, c, norm.eval()), step(x, c, norm))
    assert step.attention.bn.num_batches_tracked == 0
    assert step.attention.bn.training
    torch.compiler.reset()
