"""PyTorch's own checkpoints around a step.

What runs again inside of a backward leaves running statistics alone, by the
fused and by the reference path.
"""

import copy
import functools

import pytest
import torch
import torch.nn as nn
from torch.utils.checkpoint import checkpoint

from mmstepnet import steps
from mmstepnet.attentions import SRM, OursMeanStd, StepNet
from tests.test_steps.cases import build, inputs


def plain(function, *args):
    return function(*args)


def nested(function, *args, use_reentrant):
    def inner(*args):
        return checkpoint(function, *args, use_reentrant=use_reentrant)
    return checkpoint(inner, *args, use_reentrant=use_reentrant)


WAYS = {
    'reentrant': functools.partial(checkpoint, use_reentrant=True),
    'non-reentrant': functools.partial(checkpoint, use_reentrant=False),
    'nested, reentrant': functools.partial(nested, use_reentrant=True),
    'nested': functools.partial(nested, use_reentrant=False),
}


def passed(step, norm, args, way):
    """Result, gradients and buffers."""
    modules = nn.ModuleList(copy.deepcopy((step, norm)))
    x, c = (t.clone().requires_grad_() for t in args[:2])
    out = way(lambda x, c: modules[0](x, c, modules[1]) * 1.5, x, c)
    out.backward(args[2])
    return {'out': out.detach(), 'x': x.grad, 'c': c.grad,
            **{k: p.grad for k, p in modules.named_parameters()},
            **dict(modules.named_buffers())}


@pytest.mark.parametrize('way', WAYS)
@pytest.mark.parametrize('fused', [True, False])
@pytest.mark.parametrize('kind', [StepNet, SRM, OursMeanStd])
def test_statistics_are_updated_once(kind, fused, way, calls):
    torch.manual_seed(0)
    step, norm = build(kind, 4)
    nn.ModuleList([step, norm]).double()
    args = inputs((3, 4, 5, 4))
    with steps.fused(fused):
        wanted = passed(step, norm, args, plain)
        found = passed(step, norm, args, WAYS[way])
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        assert torch.equal(found[key], value), key
        if 'num_batches' in key:
            assert value == 1
    assert bool(calls) == (fused and kind is StepNet)


@pytest.mark.parametrize('fused', [True, False])
def test_a_hook_of_a_gradient(fused):
    """Whatever runs inside of a backward, as a checkpoint does."""
    step, norm = build(StepNet, 4)
    x, c, grad = inputs((3, 4, 5, 4), torch.float32)
    with steps.fused(fused):
        out = step(x, c.requires_grad_(), norm)
        c.register_hook(lambda g: step(x, c, norm) * 0)
        out.backward(grad)
    assert norm.num_batches_tracked == 1
    assert step.attention.bn.num_batches_tracked == 1
    assert torch.equal(c.grad, torch.zeros_like(c))
    with steps.fused(fused):
        step(x, c, norm)
    assert norm.num_batches_tracked == 2


def test_frozen_modes_inside_a_checkpoint(calls):
    """Running statistics are read again, from the same place."""
    step, norm = build(StepNet, 4)
    step.requires_grad_(False)
    norm.eval()
    args = inputs((3, 4, 5, 4), torch.float32)
    for way in WAYS.values():
        wanted = passed(step, norm, args, plain)
        for key, value in passed(step, norm, args, way).items():
            assert value is wanted[key] is None or torch.equal(
                value, wanted[key]), key
    assert calls
