"""Steps, maps and passes that the tests of the fused path share."""

import copy

import pytest
import torch
import torch.nn as nn

from mmstepnet import steps
from mmstepnet.attentions import FoldedStepNet, StepNet
from mmstepnet.steps import ResidualStep
from tests.utils import randomise

FORMATS = (torch.contiguous_format, torch.channels_last)
NORMS = ('batch', 'running', 'untracked', 'frozen', 'identity', 'none')
"""A block's last norm: BN in both modes or without running statistics,
torchvision's frozen one, or none."""
GATES = ('batch', 'running', 'untracked', 'folded')
"""The gate's BN likewise, or a gate that is folded."""


def build(attention, channels, relu=True):
    """A step and the norm before it."""
    step = ResidualStep(
        attention(channels), nn.ReLU(inplace=True) if relu else None
    )
    norm = nn.BatchNorm2d(channels)
    randomise(step, norm)
    return step, norm


def build_modes(norm, gate, channels=6, relu=True):
    """A step and a norm of :data:`GATES` and :data:`NORMS`, in float64."""
    step, _ = build(StepNet, channels, relu)
    if gate == 'untracked':
        step.attention.bn = nn.BatchNorm1d(channels, track_running_stats=False)
    step.train(gate == 'batch')
    if norm == 'frozen':
        made = pytest.importorskip('torchvision').ops.FrozenBatchNorm2d(
            channels
        )
    elif norm == 'identity':
        made = nn.Identity()
    else:
        made = nn.BatchNorm2d(
            channels, track_running_stats=norm != 'untracked'
        )
        made.train(norm == 'batch')
    modules = nn.ModuleList([step, made]).double()
    randomise(*modules)
    if gate == 'folded':
        step.attention = FoldedStepNet(step.attention)
    return step, None if norm == 'none' else made


def inputs(shape, dtype=torch.float64, memory_format=FORMATS[0], mean=1.0):
    x, c, g = (torch.randn(shape, dtype=torch.float64) for _ in range(3))
    # Images differ in their means, as real ones do. A BN over nearly equal
    # pooled values would amplify rounding, in either path.
    x, c = (
        t + torch.randn(shape[:2], dtype=torch.float64)[..., None, None]
        for t in (x, c)
    )
    return [
        t.to(dtype).contiguous(memory_format=memory_format)
        for t in (x, 2 * c + mean, g)
    ]


def away_from_kink(step, norm, x, c, grad, margin):
    """Drop the gradient where rounding decides on which side of 0 we are."""
    step, norm = (
        module and copy.deepcopy(module).double() for module in (step, norm)
    )
    step.activation = nn.Identity()
    with steps.fused(False), torch.no_grad():
        total = step(x.double(), c.double(), norm)
    return grad * (total.abs() > margin * total.abs().mean()).to(grad)


def run(
    fused,
    step,
    norm,
    x,
    c,
    grad,
    dtype=None,
    observer=None,
    wrap=lambda step: step,
):
    """Outputs, all gradients and all buffers of one pass."""
    step, norm = copy.deepcopy((step, norm))
    if observer is not None:
        step.observe(lambda *told: observer(told))
    modules = nn.ModuleDict({'step': step})
    if norm is not None:
        modules['norm'] = norm
    if dtype is not None:
        modules.to(dtype)
        x, c, grad = (t.to(dtype) for t in (x, c, grad))
    x, c = (t.detach().requires_grad_() for t in (x, c))
    with steps.fused(fused):
        out = wrap(step)(x, c, norm)
    out.backward(grad)
    return {
        'out': out.detach(),
        'x': x.grad,
        'c': c.grad,
        **{k: p.grad for k, p in modules.named_parameters()},
        **dict(modules.named_buffers()),
    }


def errors(got, expected):
    """Error of each entry, relative to the entry's norm."""
    assert got.keys() == expected.keys()
    return {
        k: (
            (got[k].double() - v.double()).norm()
            / v.double().norm().clamp(min=1e-12)
        ).item()
        for k, v in expected.items()
    }


def worst(got, expected):
    """Largest error of an entry, relative to its norm, and its name."""
    found = errors(got, expected)
    name = max(found, key=found.get)
    return found[name], name
