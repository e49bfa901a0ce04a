"""Steps, maps and passes that the tests of the fused path share."""

import copy
import math
from typing import NamedTuple

import pytest
import torch
import torch.nn as nn

from mmstepnet import steps
from mmstepnet.attentions import FoldedStepNet, StepNet
from mmstepnet.steps import ResidualStep
from mmstepnet.steps.branch import BranchStep, Place, Spot
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


class Arrangement(NamedTuple):
    """How the state at a branch's end lies in memory."""

    shape: tuple
    batch: int
    channels: int
    order: tuple = ()
    """The axes from outside, where they lie in another order."""
    x_order: tuple = ()
    """Those of the state."""
    g_order: tuple = ()
    """Those of the result's gradient, where they are not the branch's."""

    def tensor(self, seed, dtype, order=()):
        """Means of images differ, as in :func:`inputs`."""
        torch.manual_seed(seed)
        means = [1] * len(self.shape)
        for axis in self.batch, self.channels:
            means[axis] = self.shape[axis]
        values = torch.randn(self.shape, dtype=torch.float64)
        values += torch.randn(means, dtype=torch.float64)
        values = values.to(dtype)
        order = order or range(len(self.shape))
        back = sorted(range(len(order)), key=order.__getitem__)
        return values.permute(*order).contiguous().permute(*back)


NHWC = 0, 2, 3, 1
LNC = 1, 0, 2

ARRANGEMENTS = {
    'tokens': Arrangement((5, 7, 6), 0, 2),
    'N-C-L': Arrangement((5, 6, 7), 0, 1),
    'maps': Arrangement((5, 6, 5, 3), 0, 1),
    'maps in channels_last': Arrangement((5, 6, 5, 3), 0, 1, NHWC, NHWC),
    'maps whose channels are the last axis': Arrangement((5, 5, 3, 6), 0, 3),
    'maps beside a state in channels_last': Arrangement(
        (5, 6, 5, 3), 0, 1, (), NHWC
    ),
    'maps in channels_last beside a state': Arrangement(
        (5, 6, 5, 3), 0, 1, NHWC
    ),
    'volumes': Arrangement((5, 6, 2, 3, 4), 0, 1),
    'volumes of tokens': Arrangement((5, 2, 3, 4, 6), 0, 4),
    'tokens, images inside': Arrangement((5, 7, 6), 0, 2, LNC, LNC),
    'tokens, images inside, beside others': Arrangement(
        (5, 7, 6), 0, 2, LNC, (), (0, 1, 2)
    ),
    'tokens beside a state with images inside': Arrangement(
        (5, 7, 6), 0, 2, (), LNC, LNC
    ),
    'the axis of tokens first': Arrangement((7, 5, 6), 1, 2, LNC, LNC),
    'vectors': Arrangement((5, 6), 0, 1),
    'one token': Arrangement((5, 1, 6), 0, 2),
    'one channel': Arrangement((5, 7, 1), 0, 2),
    'many channels': Arrangement((5, 3, 130), 0, 2),
    'many places': Arrangement((5, 1023, 3), 0, 2),
}
"""Forms that a step at a branch's end takes by hand."""


def build_branch(arrangement, gate, init_step=1.5):
    """A step at a branch's end with a gate of :data:`GATES`, in float64."""
    shape, batch, channels, *_ = arrangement
    size, spot = shape[channels], Spot('a', False, 0)
    attention = StepNet(size, init_step=init_step)
    if gate == 'untracked':
        attention.bn = nn.BatchNorm1d(size, track_running_stats=False)
    attention.bn.momentum, attention.bn.eps = 0.3, 1e-3
    place = Place('step', spot, spot, len(shape), batch, channels, size)
    step = BranchStep(attention, place).double().train(gate == 'batch')
    randomise(step)
    if gate == 'folded':
        step.attention = FoldedStepNet(step.attention)
    return step


def branch_inputs(arrangement, dtype=torch.float64, x_dtype=None):
    """State, branch and the gradient of the result."""
    return [
        arrangement.tensor(0, x_dtype or dtype, arrangement.x_order),
        arrangement.tensor(1, dtype, arrangement.order),
        arrangement.tensor(2, dtype, arrangement.g_order or arrangement.order),
    ]


def run_branch(fused, step, x, f, grad, dtype=None, observer=None):
    """Output, all gradients and all buffers of one pass."""
    step = copy.deepcopy(step)
    if observer is not None:
        step.observe(lambda *told: observer(told))
    if dtype is not None:
        step.to(dtype)
        x, f, grad = (t.to(dtype) for t in (x, f, grad))
    x, f = (t.detach().requires_grad_() for t in (x, f))
    with steps.fused(fused):
        out = step(x, f)
    out.backward(grad)
    return {
        'out': out.detach(),
        'x': x.grad,
        'f': f.grad,
        **{k: p.grad for k, p in step.named_parameters()},
        **dict(step.named_buffers()),
    }


def by_numpy(arrangement, step, x, f):
    """f Δt of a gate in eval mode, by the equation, in numpy."""
    gate, axes = step.attention, {arrangement.batch, arrangement.channels}
    places = tuple(i for i in range(f.dim()) if i not in axes)
    count = math.prod(f.shape[i] for i in places)
    x_mean, f_mean = (
        t.detach().double().numpy().sum(places, keepdims=True) / count
        for t in (x, f)
    )
    size = [1] * f.dim()
    size[arrangement.channels] = -1

    def vector(t):
        return t.detach().double().numpy().reshape(size)

    z = vector(gate.pair_weight[:, 0]) * x_mean
    z = z + vector(gate.pair_weight[:, 1]) * (x_mean + f_mean)
    bn = gate.bn
    z = (z - vector(bn.running_mean)) / (
        vector(bn.running_var) + bn.eps
    ) ** 0.5
    z = z * vector(bn.weight) + vector(bn.bias)
    logits = vector(gate.ie_weight) * z + vector(gate.ie_bias)
    step_size = gate.scale / (1 + math.e**-logits)
    return torch.from_numpy(f.detach().double().numpy() * step_size)
