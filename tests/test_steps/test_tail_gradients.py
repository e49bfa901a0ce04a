"""Graphs, derivatives of both orders and memory of the fused step."""

import gc
import itertools

import pytest
import torch
import torch.nn as nn
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.utils.stateless import _reparametrize_module

from mmstepnet import steps
from mmstepnet.attentions import Plain, StepNet
from mmstepnet.steps import ResidualStep
from tests.test_steps.cases import (
    FORMATS,
    GATES,
    NORMS,
    Block,
    build,
    build_modes,
    inputs,
    randomise,
)


@pytest.mark.parametrize('norm', NORMS)
@pytest.mark.parametrize('gate', GATES)
@pytest.mark.parametrize('relu', [True, False])
def test_derivatives_of_both_orders(norm, gate, relu, calls):
    step, norm = build_modes(norm, gate, 2, relu)
    modules = nn.ModuleList([step, norm] if norm is not None else [step])
    names = [name for name, _ in modules.named_parameters()]

    def function(x, c, *parameters):
        values = dict(zip(names, parameters))
        with _reparametrize_module(modules, values):
            return step(x, c, norm)

    args = [t.requires_grad_() for t in inputs((3, 2, 2, 2))[:2]]
    args += list(modules.parameters())
    assert gradcheck(function, args, fast_mode=False)
    assert gradgradcheck(function, args, fast_mode=True)
    assert calls


@pytest.mark.parametrize('training', [True, False])
def test_second_derivatives_where_the_branch_comes_from_the_state(training,
                                                                  calls):
    """As in every block; what comes by the branch is not the state's."""
    block = Block(StepNet(8)).double().train(training)
    randomise(block)
    x = torch.randn(3, 8, 5, 4, dtype=torch.float64, requires_grad=True)
    found = []
    for fused in (True, False):
        with steps.fused(fused):
            out = block(x).square().sum()
        wanted = [x, *block.parameters()]
        first = torch.autograd.grad(out, wanted, create_graph=True)
        second = torch.autograd.grad(
            sum(t.square().sum() for t in first), wanted)
        found.append((*first, *second))
    for got, expected in zip(*found):
        torch.testing.assert_close(
            got, expected, rtol=1e-8, atol=1e-8 * expected.abs().max().item())
    assert len(calls) == 1
    if training:  # once in each path's forward
        assert block.norm2.num_batches_tracked == 2


def test_a_step_is_freed_after_the_backward(calls):
    """At once, without Python's collector; a network takes millions."""
    step, norm = build(StepNet, 6)

    def take():
        x, c, grad = inputs((3, 6, 4, 4), torch.float32)
        x.requires_grad_()
        step(x, c.requires_grad_(), norm).backward(grad)

    def alive():
        return sum(isinstance(o, torch.Tensor) or 'Tail' in type(o).__name__
                   for o in gc.get_objects())
    take()  # parameters get their gradients
    gc.collect()
    gc.disable()
    try:
        before = alive()
        take()
        after = alive()
    finally:
        gc.enable()
    assert len(calls) == 2 and after == before


@pytest.mark.parametrize('memory_format', FORMATS)
@pytest.mark.parametrize('needs_x, needs_c, frozen', [
    *itertools.product([True, False], [True, False], [False]),
    (True, True, True), (False, True, True)])
def test_whatever_is_wanted(needs_x, needs_c, frozen, memory_format, calls):
    """Some gradients, twice; what the step was given is left alone.

    Frozen norms and gates are what detectors have.
    """
    mode = 'running' if frozen else 'batch'
    step, norm = build_modes(mode, mode)
    x, c, grad = inputs((3, 6, 3, 3), memory_format=memory_format)
    kept = [t.clone() for t in (x, c, grad)]
    x.requires_grad_(needs_x), c.requires_grad_(needs_c)
    wanted = [t for t in (x, c) if t.requires_grad]
    if frozen:
        step.requires_grad_(False), norm.requires_grad_(False)
    else:
        wanted += [norm.weight, step.attention.pair_weight]
    results = []
    for fused in (True, False):
        with steps.fused(fused):
            out = step(x, c, norm)
        first, again = (torch.autograd.grad(
            out, wanted, grad, retain_graph=True) for _ in range(2))
        assert all(map(torch.equal, first, again))
        results.append(first)
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)
    assert all(map(torch.equal, (x, c, grad), kept))
    assert len(calls) == 1


@pytest.mark.skipif(torch.__version__ < (2, 2),
                    reason='older ones cannot tell such gradients')
def test_steps_of_many_sizes_before_one_backward(calls):
    """What stands for a missing norm of 16 channels is 2 images of 8, too."""
    first, second = ResidualStep(StepNet(16)), ResidualStep(StepNet(8))
    x, c = torch.randn(2, 2, 16, 4, 4)
    c.requires_grad_()
    out = first(x, c)
    second(x.view(4, 8, 4, 4)[:2], c.detach().view(4, 8, 4, 4)[:2])
    with steps.fused(False):
        wanted, = torch.autograd.grad(first(x, c).square().sum(), c)
    found, = torch.autograd.grad(out.square().sum(), c)
    assert len(calls) == 2
    torch.testing.assert_close(found, wanted)


def test_gradients_of_many_directions_at_once(calls):
    """As Jacobians are computed."""
    step, norm = build_modes('batch', 'batch', 2)
    x, c, _ = inputs((3, 2, 2, 2))
    basis = torch.eye(c.requires_grad_().numel(), dtype=c.dtype)
    found = []
    for fused in (True, False):
        with steps.fused(fused):
            out = step(x, c, norm)
        found += torch.autograd.grad(out, c, basis.view(-1, *c.shape),
                                     is_grads_batched=True)
    torch.testing.assert_close(*found)
    assert len(calls) == 1


@pytest.mark.parametrize('memory_format', FORMATS)
def test_memory_for_the_backward(memory_format, calls):
    """Distinct storages: those of plain blocks and a few vectors."""
    def saved(attention):
        blocks = nn.Sequential(*(Block(attention(8)) for _ in range(3)))
        blocks.to(memory_format=memory_format)
        own = {t.untyped_storage().data_ptr()
               for t in (*blocks.parameters(), *blocks.buffers())}
        kept = {}

        def pack(t):
            storage = t.untyped_storage()
            kept[storage.data_ptr()] = storage.nbytes()
            return t
        x = torch.randn(4, 8, 32, 32).contiguous(memory_format=memory_format)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            out = blocks(x)
        assert out.requires_grad
        return sum(n for key, n in kept.items() if key not in own)

    vectors = 10 * 4 * 8 * 4  # 10 of (N, C) a block
    plain = saved(Plain)
    assert not calls
    assert plain <= saved(StepNet) <= plain + 3 * vectors
    assert len(calls) == 3
