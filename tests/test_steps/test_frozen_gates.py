"""A frozen gate normalises by its running statistics and leaves them."""

import copy

import pytest
import torch
import torch.nn as nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    checkpoint_wrapper,
)
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
    assert not any(
        torch.equal(t, buffers[name])
        for name, t in statistics(pair.step).items()
        if 'running' in name
    )


def freeze(module, library):
    """All BNs, as the freezes of detection and of fine-tuning do."""
    layers = pytest.importorskip(library)
    if library == 'timm.layers':
        return layers.freeze_batch_norm_2d(module)
    for name, child in module.named_children():
        if isinstance(child, nn.modules.batchnorm._BatchNorm):
            frozen = layers.FrozenBatchNorm2d(child.num_features, child.eps)
            frozen.load_state_dict(child.state_dict())
            setattr(module, name, frozen)
        freeze(child, library)
    return module


@pytest.mark.parametrize('library', ['torchvision.ops', 'timm.layers'])
@pytest.mark.parametrize('kind', GATES, ids=lambda kind: kind.__name__)
def test_frozen_behind_a_conversion_to_sync_bn(kind, library, path):
    """The gate takes the statistics of before in training, too."""
    pair = Pair(*build(kind, 8)).eval()
    x, c = maps(4)
    expected = pair((x, c))
    pair.step = freeze(
        nn.SyncBatchNorm.convert_sync_batchnorm(pair.step), library
    )
    pair.step.train()
    buffers = statistics(pair.step)
    torch.testing.assert_close(pair((x, c)), expected)
    torch.testing.assert_close(statistics(pair.step), buffers, rtol=0, atol=0)
    assert not any(
        isinstance(m, nn.modules.batchnorm._BatchNorm)
        for m in pair.step.modules()
    )


@pytest.mark.parametrize(
    'norm, shape',
    [
        (nn.SyncBatchNorm(8), (4, 8, 1, 1)),
        (nn.GroupNorm(2, 8), (4, 8, 1, 1)),
        (nn.BatchNorm2d(8), (4, 8, 1, 1)),
        (nn.BatchNorm1d(8), (4, 8)),
        (nn.LayerNorm(8), (4, 8)),
        (nn.Identity(), (4, 8)),
        (checkpoint_wrapper(nn.BatchNorm1d(8)), (4, 8)),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize('kind', [StepNet, SRM, OursMeanStd])
def test_what_a_norm_is_given(kind, norm, shape):
    """Maps of one place, unless it is a norm of vectors."""
    step, before = build(kind, 8)
    step.attention.bn = norm
    seen = []
    handle = norm.register_forward_pre_hook(
        lambda norm, args: seen.append(tuple(args[0].shape))
    )
    step.eval()(*maps(4), before)
    handle.remove()
    assert seen == [shape]


@pytest.mark.parametrize('kind', [StepNet, SRM, OursMeanStd])
def test_update_bn_sets_statistics_of_the_data(kind, path):
    """It forgets those that there were; MMEngine's averages are frozen."""
    step, norm = build(kind, 8)
    batches = [(maps(4),) for _ in range(3)]
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
