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
    build,
    build_modes,
    inputs,
)
from tests.utils import TORCH_21, StepBlock, randomise


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
    assert gradcheck(
        function, args, fast_mode=False, check_batched_grad=not TORCH_21
    )
    assert gradgradcheck(function, args, fast_mode=True)
    assert calls


@pytest.mark.parametrize('training', [True, False])
def test_second_derivatives_where_the_branch_comes_from_the_state(
    training, calls
):
    """As in every block; what comes by the branch is not the state's."""
    block = StepBlock(StepNet(8)).double().train(training)
    randomise(block)
    assert gradgradcheck(
        block, inputs((3, 8, 5, 4))[0].requires_grad_(), fast_mode=True
    )
    assert calls


def test_a_step_is_freed_after_the_backward(calls):
    """At once, without Python's collector; a network takes millions."""
    step, norm = build(StepNet, 6)

    def take():
        x, c, grad = inputs((3, 6, 4, 4), torch.float32)
        x.requires_grad_()
        step(x, c.requires_grad_(), norm).backward(grad)

    def alive():
        return sum(
            isinstance(o, torch.Tensor) or 'Tail' in type(o).__name__
            for o in gc.get_objects()
        )

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
@pytest.mark.parametrize('mode', ['batch', 'running'])
@pytest.mark.parametrize(
    'wanted', [w for w in itertools.product([True, False], repeat=3) if any(w)]
)
def test_whatever_is_wanted(wanted, mode, memory_format, calls):
    """Of x, c and parameters, twice; what was given is left alone.

    Frozen norms and gates are what detectors have.
    """
    step, norm = build_modes(mode, mode)
    x, c, grad = inputs((3, 6, 3, 3), memory_format=memory_format)
    kept = [t.clone() for t in (x, c, grad)]
    groups = [x], [c], [*step.parameters(), *norm.parameters()]
    for tensors, needed in zip(groups, wanted):
        for t in tensors:
            t.requires_grad_(needed)
    asked = [t for tensors in groups for t in tensors if t.requires_grad]
    results = []
    for fused in (True, False):
        with steps.fused(fused):
            out = step(x, c, norm)
        first, again = (
            torch.autograd.grad(out, asked, grad, retain_graph=True)
            for _ in range(2)
        )
        assert all(map(torch.equal, first, again))
        results.append(first)
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)
    assert all(map(torch.equal, (x, c, grad), kept))
    assert len(calls) == 1


def test_constants_serve_all_steps(calls):
    """Before one backward: what stands for a missing norm of 16 channels.

    It is 2 images of 8, too. And no NaN stays in it for the steps to come.
    """
    first, second = ResidualStep(StepNet(16)), ResidualStep(StepNet(8))
    x, c = torch.randn(2, 2, 16, 4, 4)
    spoilt = inputs((2, 16, 4, 4), torch.bfloat16, FORMATS[1])[:2]
    spoilt[1][0] = torch.nan
    first(*spoilt, nn.BatchNorm2d(16))
    c.requires_grad_()
    out = first(x, c)
    second(x.view(4, 8, 4, 4)[:2], c.detach().view(4, 8, 4, 4)[:2])
    with steps.fused(False):
        (wanted,) = torch.autograd.grad(first(x, c).square().sum(), c)
    (found,) = torch.autograd.grad(out.square().sum(), c)
    assert len(calls) == 3
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize('memory_format', FORMATS)
def test_memory_for_the_backward(memory_format, calls):
    """Distinct storages: those of plain blocks and a few vectors."""

    def saved(attention):
        blocks = nn.Sequential(*(StepBlock(attention(8)) for _ in range(3)))
        blocks.to(memory_format=memory_format)
        own = {
            t.untyped_storage().data_ptr()
            for t in (*blocks.parameters(), *blocks.buffers())
        }
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
