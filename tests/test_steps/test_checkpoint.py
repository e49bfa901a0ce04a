"""Blocks in a checkpoint of PyTorch's, which runs them again in backward."""

import copy
import functools

import pytest
import torch
import torch.nn as nn
from torch.utils.checkpoint import CheckpointError, checkpoint

from mmstepnet import TrajectoryRecorder, steps
from mmstepnet.attentions import CBAM, SE, SRM, Plain, StepNet
from tests.test_steps.cases import Block, randomise

WAYS = {
    'reentrant': functools.partial(checkpoint, use_reentrant=True),
    'non-reentrant': functools.partial(checkpoint, use_reentrant=False),
}


def stage(attention):
    torch.manual_seed(0)
    blocks = nn.Sequential(*(Block(attention(8)) for _ in range(2)))
    randomise(blocks)
    return blocks.double(), torch.randn(3, 8, 5, 4, dtype=torch.float64)


def gradients(blocks, x, way=None, recorded=False):
    """Gradients and buffers of a pass, of which the forward is recorded."""
    blocks, x = copy.deepcopy(blocks), x.clone().requires_grad_()
    recorder = TrajectoryRecorder(blocks)
    if recorded:
        recorder.start(once=True)
    run = blocks if way is None else functools.partial(WAYS[way], blocks)
    run(x).square().sum().backward()
    assert len(recorder) == 3 * recorded
    return ([x.grad, *(p.grad for p in blocks.parameters())],
            dict(blocks.named_buffers()))


@pytest.mark.parametrize('way', WAYS)
@pytest.mark.parametrize('fused', [True, False])
@pytest.mark.parametrize('attention', [StepNet, SE, SRM, CBAM])
def test_gradients(attention, fused, way, calls):
    """Also where somebody records the forward pass alone."""
    blocks, x = stage(attention)
    with steps.fused(fused):
        wanted, _ = gradients(blocks, x)
        taken = len(calls)
        for recorded in (False, True):
            found, _ = gradients(blocks, x, way, recorded)
            torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
    assert taken == 2 * (fused and attention is StepNet)
    assert len(calls) >= 5 * taken


@pytest.mark.parametrize('fused', [True, False])
def test_statistics_are_those_of_pytorch(fused):
    """Updated twice, in steps and without."""
    counts = {}
    for attention in (Plain, StepNet):
        with steps.fused(fused):
            _, buffers = gradients(*stage(attention), 'non-reentrant')
        counts[attention] = {int(v) for k, v in buffers.items()
                             if 'num_batches' in k}
    assert counts[StepNet] == counts[Plain] == {2}


def test_a_hook_that_comes_before_the_backward_is_no_silent_fault():
    blocks, x = stage(StepNet)
    out = checkpoint(blocks, x.requires_grad_(), use_reentrant=False)
    blocks[0].norm2.register_forward_hook(lambda *args: None)
    with pytest.raises(CheckpointError):
        out.sum().backward()
