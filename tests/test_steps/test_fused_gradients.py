"""Graphs, derivatives and memory of the fused residual step."""

import gc
import weakref

import pytest
import torch
import torch.nn as nn
from torch.autograd import gradcheck, gradgradcheck

from mmstepnet import steps
from mmstepnet.attentions import SE, SRM, StepNet
from mmstepnet.steps.vectors import Formulas
from tests.test_steps.cases import (
    build,
    inputs,
    run,
    worst,
)


@pytest.mark.parametrize('attention', [StepNet, SE, SRM])
@pytest.mark.parametrize('training,relu', [(True, True), (True, False),
                                           (False, True)])
def test_derivatives_of_both_orders(attention, training, relu, calls):
    torch.manual_seed(0)
    step, norm = build(attention, 2, relu)
    modules = nn.ModuleList([step, norm]).double().train(training)
    names = [name for name, _ in modules.named_parameters()]
    for name, buffer in modules.named_buffers():
        if 'running' in name and training:
            buffer.requires_grad_(False)

    def function(x, c, *parameters):
        values = dict(zip(names, parameters))
        with torch.nn.utils.stateless._reparametrize_module(modules, values):
            return step(x, c, norm)

    args = [t.requires_grad_() for t in inputs((3, 2, 2, 2))[:2]]
    args += list(modules.parameters())
    assert gradcheck(function, args)
    assert gradgradcheck(function, args)
    assert calls


def test_a_gradient_of_the_gate_alone_leaves_nothing_behind():
    """No cycle of nodes, which nothing would ever collect."""
    class Kept:

        def __init__(self, tensor):
            self.tensor = tensor
    kept = []

    def pack(tensor):
        packed = Kept(tensor.detach())
        kept.append(weakref.ref(packed))
        return packed
    step, norm = build(StepNet, 6)
    x, c, _ = inputs((3, 6, 5, 4), torch.float32)
    with torch.autograd.graph.saved_tensors_hooks(
            pack, lambda packed: packed.tensor):
        out = step(x.requires_grad_(), c.requires_grad_(), norm)
    gates = list(step.attention.parameters())
    assert all(g.abs().sum() > 0 for g in torch.autograd.grad(
        out.square().sum(), gates))
    assert kept
    del out
    gc.collect()
    assert not any(ref() for ref in kept)
    assert not any(isinstance(o, Formulas) for o in gc.get_objects())


def test_no_reentrant_surprises():
    """Retained graphs, partial gradients, a state that needs no gradient."""
    torch.manual_seed(0)
    step, norm = build(StepNet, 4)
    step.double()
    norm.double()
    x, c, grad = inputs((2, 4, 3, 3))
    for needs_x, needs_c in ((True, True), (False, True), (True, False),
                             (False, False)):
        results = []
        for fused in (True, False):
            a = x.clone().requires_grad_(needs_x)
            b = c.clone().requires_grad_(needs_c)
            with steps.fused(fused):
                out = step(a, b, norm)
            wanted = [t for t in (a, b) if t.requires_grad]
            wanted += [norm.weight, step.attention.pair_weight]
            first = torch.autograd.grad(out, wanted[-1:], grad,
                                        retain_graph=True)
            again = [torch.autograd.grad(out, wanted, grad, retain_graph=True)
                     for _ in range(2)]
            for u, v in zip(*again):
                assert torch.equal(u, v)
            torch.testing.assert_close(first[0], again[0][-1])
            results.append(again[0])
        for u, v in zip(*results):
            torch.testing.assert_close(u, v, rtol=1e-10, atol=1e-12)


def test_gradient_of_the_result_is_left_alone():
    step, norm = build(SE, 4, relu=False)
    x, c, grad = inputs((2, 4, 3, 3), torch.float32)
    before = grad.clone()
    step(x.requires_grad_(), c.requires_grad_(), norm).backward(grad)
    assert torch.equal(grad, before)


def test_saves_one_map_and_the_result():
    step, norm = build(StepNet, 8)
    x, c, _ = inputs((4, 8, 32, 32), torch.float32)

    def saved(function):
        total = []

        def pack(t):
            if not isinstance(t, nn.Parameter):
                total.append(t.numel() * t.element_size())
            return t

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            function(x.clone().requires_grad_() * 1,
                     c.clone().requires_grad_() * 1)
        return sum(total)

    plain = saved(lambda x, c: torch.relu_(norm(c).add_(x)))
    fused = saved(lambda x, c: step(x, c, norm))
    coefficients = 40 * 4 * 8 * 4  # 40 tensors of (N, C)
    assert plain <= fused <= plain + coefficients


def test_compiled_autograd(calls):
    """Its tracer reads the backward of a forward that ran eagerly."""
    compiled_autograd = pytest.importorskip('torch._dynamo.compiled_autograd')
    if not hasattr(compiled_autograd, '_enable'):
        pytest.skip('this PyTorch names its switch otherwise')
    torch.manual_seed(0)
    step, norm = build(StepNet, 6)
    x, c, grad = inputs((3, 6, 5, 4), torch.float32)
    expected = run(True, step, norm, x, c, grad)
    torch.compiler.reset()
    with compiled_autograd._enable(
            lambda graph: torch.compile(graph, backend='eager')):
        got = run(True, step, norm, x, c, grad)
    error, name = worst(got, expected)
    assert error < 1e-6, name
    assert len(calls) == 2
