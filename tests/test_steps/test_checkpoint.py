"""Checkpointed blocks take one path and update their statistics once."""

import contextlib
import copy

import pytest
import torch
import torch.nn as nn

from mmstepnet import steps
from mmstepnet.attentions import CBAM, SE, StepNet
from mmstepnet.models.backbones.blocks import (
    PreActStepBasicBlock,
    StepBasicBlock,
)
from mmstepnet.steps import checkpoint
from tests.test_steps.cases import randomise


def hooked(block):
    """Module hooks on every part that the fused path would skip."""
    stack = contextlib.ExitStack()
    for module in (block.norm2, block.step.attention,
                   *block.step.attention.children()):
        stack.enter_context(
            module.register_forward_hook(lambda *args: None))
    return stack


def observed(block):
    """An observer, which takes the reference path."""
    return contextlib.closing(_Closing(block.step.observe(lambda *a: None)))


class _Closing:

    def __init__(self, handle):
        self.close = handle.remove


CONTEXTS = {
    'nothing': lambda block: contextlib.nullcontext(),
    'switched off': lambda block: steps.fused(False),
    'hooked': hooked,
    'observed': observed,
}


def passes(block, x, forward, backward):
    """Gradients and buffers, each pass in a context of its own."""
    block = copy.deepcopy(block)
    x = x.clone().requires_grad_()
    with CONTEXTS[forward](block):
        out = block(x)
    with CONTEXTS[backward](block):
        out.square().sum().backward()
    return [x.grad, *(p.grad for p in block.parameters()),
            *block.buffers()]


@pytest.mark.parametrize('forward', CONTEXTS)
@pytest.mark.parametrize('backward', CONTEXTS)
@pytest.mark.parametrize('attention', [StepNet, SE, CBAM])
@pytest.mark.parametrize('kind', [StepBasicBlock, PreActStepBasicBlock])
def test_whatever_comes_or_goes_before_backward(kind, attention, forward,
                                                backward):
    torch.manual_seed(0)
    block = kind(6, 6, norm_cfg=dict(type='BN'))
    block.step.attention = attention(6)
    randomise(block)
    block.double().train()
    x = torch.randn(3, 6, 5, 4, dtype=torch.float64)
    expected = passes(block, x, 'switched off', 'nothing')
    block.with_cp = True
    got = passes(block, x, forward, backward)
    for a, b in zip(got, expected):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    tracked = [b for b in got if b.dtype == torch.int64]
    assert tracked and all(b == 1 for b in tracked)


def test_graph_that_is_kept():
    """Each backward runs the block once more, from the same start."""
    torch.manual_seed(0)
    block = StepBasicBlock(6, 6, with_cp=True).double()
    block.step.attention = StepNet(6).double()
    randomise(block)
    x = torch.randn(3, 6, 5, 4, dtype=torch.float64, requires_grad=True)
    with steps.fused(False):
        out = block(x).square().sum()
    first, = torch.autograd.grad(out, x, retain_graph=True)
    second, = torch.autograd.grad(out, x)
    assert torch.equal(first, second)
    assert block.norm1.num_batches_tracked == 1


def test_runs_inside_each_other():
    torch.manual_seed(0)
    inner = nn.BatchNorm1d(3).double()
    outer = nn.Sequential(inner, nn.Linear(3, 3).double())
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    plain = copy.deepcopy(outer)
    plain(x).square().sum().backward()
    expected, x.grad = x.grad, None

    def run(x):
        return outer[1](checkpoint(inner, inner, x))

    checkpoint(outer, run, x).square().sum().backward()
    torch.testing.assert_close(x.grad, expected)
    assert torch.equal(inner.running_mean, plain[0].running_mean)
    assert inner.num_batches_tracked == 1
