"""Blocks of the backbones in training, checkpointed and not.

A checkpointed one takes one path and updates its statistics once.
"""

import contextlib
import copy
import itertools

import pytest
import torch
import torch.nn as nn
from torch.utils.checkpoint import checkpoint as checkpoint_of_pytorch

from mmstepnet import steps
from mmstepnet.attentions import CBAM, SE, StepNet
from mmstepnet.models import StepResNet
from mmstepnet.steps import checkpoint
from tests.test_steps.cases import FORMATS, inputs, randomise, worst


def block_of(depth, **kwargs):
    """The second block of a backbone, 8 or 32 channels wide."""
    model = StepResNet(depth, attention=None, host='mmpretrain',
                       base_channels=8, stem_channels=8, **kwargs)
    return model.layer1[1]


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
@pytest.mark.parametrize('preact', [False, True])
def test_whatever_comes_or_goes_before_backward(preact, attention, forward,
                                                backward):
    torch.manual_seed(0)
    block = block_of(18, preact=preact)
    block.step.attention = attention(8)
    randomise(block)
    block.double().train()
    x = torch.randn(3, 8, 5, 4, dtype=torch.float64)
    expected = passes(block, x, 'switched off', 'nothing')
    block.with_cp = True
    got = passes(block, x, forward, backward)
    for a, b in zip(got, expected):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    tracked = [b for b in got if b.dtype == torch.int64]
    assert tracked and all(b == 1 for b in tracked)


@pytest.mark.parametrize('forward, backward', [
    *itertools.product(('switched off', 'hooked', 'observed'), CONTEXTS),
    ('nothing', 'nothing'), ('nothing', 'observed')])
def test_checkpoints_of_pytorch(forward, backward, calls):
    """They keep no decisions: a step repeats that of its last run.

    A switch or a hook that comes when the fused path has been taken is none
    that may be passed over; it changes what is saved, and PyTorch says so.
    """
    torch.manual_seed(0)
    block = block_of(18)
    block.step.attention = StepNet(8)
    randomise(block)
    block.double().train()
    x = torch.randn(3, 8, 5, 4, dtype=torch.float64)
    expected = passes(block, x, 'switched off', 'nothing')
    for before in ('nothing', 'switched off'):  # the last run is what counts
        twin, x_ = copy.deepcopy(block), x.clone().requires_grad_()
        with CONTEXTS[before](twin):
            twin(x_)
        twin.load_state_dict(block.state_dict())
        calls.clear()
        with CONTEXTS[forward](twin):
            out = checkpoint_of_pytorch(twin, x_, use_reentrant=False)
        with torch.no_grad():
            twin.eval()(x_)  # autograd repeats nothing of it
        fused = len(calls)
        with CONTEXTS[backward](twin.train()):
            out.square().sum().backward()
        for a, b in zip([x_.grad, *(p.grad for p in twin.parameters())],
                        expected):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
        assert (fused, len(calls)) == (
            (2, 3) if forward == 'nothing' else (1, 1))


def in_context(name, blocks):
    stack = contextlib.ExitStack()
    for block in blocks:
        stack.enter_context(CONTEXTS[name](block))
    return stack


@pytest.mark.parametrize('forward', CONTEXTS)
def test_blocks_inside_a_stage(forward, calls):
    """Checkpointed twice, they run three times, by the path of the first."""
    torch.manual_seed(0)
    stage = nn.Sequential(*(block_of(18) for _ in range(2)))
    for block in stage:
        block.step.attention = StepNet(8)
    randomise(stage)
    stage.double().train()
    x = torch.randn(3, 8, 5, 4, dtype=torch.float64)

    def gradients(run, backward, with_cp):
        twin, x_ = copy.deepcopy(stage), x.clone().requires_grad_()
        for block in twin:
            block.with_cp = with_cp
        with in_context(forward, twin):
            out = run(twin, x_)
        with in_context(backward, twin):
            out.square().sum().backward()
        return [x_.grad, *(p.grad for p in twin.parameters()),
                *twin.buffers()]

    wanted = gradients(lambda twin, x: twin(x), 'nothing', False)
    counts = {len(calls)}
    for backward in CONTEXTS:
        calls.clear()
        found = gradients(
            lambda twin, x: checkpoint(twin, twin, x), backward, True)
        counts.add(len(calls))
        for a, b in zip(found, wanted):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    # Fused steps without checkpoints, and with them, however one goes back.
    assert counts == {0} if forward != 'nothing' else (
        len(counts) == 2 and min(counts) == 2)


def test_graph_that_is_kept():
    """Each backward runs the block once more, from the same start."""
    torch.manual_seed(0)
    block = block_of(18, with_cp=True).double()
    block.step.attention = StepNet(8).double()
    randomise(block)
    x = torch.randn(3, 8, 5, 4, dtype=torch.float64, requires_grad=True)
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


@pytest.mark.parametrize('depth', [18, 50])
@pytest.mark.parametrize('memory_format', FORMATS)
@pytest.mark.parametrize('with_cp', [False, True])
def test_three_optimizer_steps(depth, memory_format, with_cp, calls):
    torch.manual_seed(0)
    template = block_of(depth, with_cp=with_cp)
    width = template.conv1.in_channels
    template.step.attention = StepNet(width)
    randomise(template)
    template.double().to(memory_format=memory_format)
    data = [
        inputs((3, width, 9, 9), memory_format=memory_format)
        for _ in range(3)
    ]
    states = {}
    for fused in (True, False):
        model = copy.deepcopy(template).train()
        optimizer = torch.optim.SGD(
            model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
        with steps.fused(fused):
            for x, target, _ in data:
                loss = (model(x.requires_grad_()) - target).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        states[fused] = model.state_dict()
    error, name = worst(states[True], states[False])
    assert error < 1e-10, name
    assert calls
    assert worst(states[True], template.state_dict())[0] > 1e-3  # it learned


@pytest.mark.parametrize('training', [False, True])
def test_second_order_through_a_checkpoint(training, calls):
    """Which lets saved tensors be looked at once."""
    found = []
    for fused, with_cp in itertools.product([False, True], repeat=2):
        torch.manual_seed(0)
        block = block_of(18, with_cp=with_cp).double()
        block.step.attention = StepNet(8).double()
        randomise(block)
        block.train(training)
        x = torch.randn(3, 8, 5, 4, dtype=torch.float64, requires_grad=True)
        with steps.fused(fused):
            grad, = torch.autograd.grad(
                block(x).square().sum(), x, create_graph=True)
            grad.square().sum().backward()
        found.append([x.grad, *(p.grad for p in block.parameters())])
    assert calls
    for other in found[1:]:
        torch.testing.assert_close(other, found[0])
