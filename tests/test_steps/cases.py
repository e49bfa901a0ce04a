"""Steps, maps and passes that the tests of the fused path share."""

import copy

import torch
import torch.nn as nn

from mmstepnet import steps
from mmstepnet.steps import ResidualStep

FORMATS = (torch.contiguous_format, torch.channels_last)


def randomise(*modules):
    for module in modules:
        for parameter in module.parameters():
            nn.init.normal_(parameter)
        for name, buffer in module.named_buffers():
            if name.endswith('running_mean'):
                buffer.normal_()
            elif name.endswith('running_var'):
                buffer.uniform_(0.5, 2)


def build(attention, channels, relu=True, norm=True, **norm_args):
    step = ResidualStep(
        attention(channels), nn.ReLU(inplace=True) if relu else None)
    norm = nn.BatchNorm2d(channels, **norm_args) if norm else None
    randomise(*[m for m in (step, norm) if m is not None])
    return step, norm


def inputs(shape, dtype=torch.float64, memory_format=FORMATS[0], mean=1.0):
    x, c, g = (torch.randn(shape, dtype=torch.float64) for _ in range(3))
    # Images differ in their means, as real ones do. A BN over nearly equal
    # pooled values would amplify rounding, in either path.
    x, c = (t + torch.randn(shape[:2], dtype=torch.float64)[..., None, None]
            for t in (x, c))
    return [
        t.to(dtype).contiguous(memory_format=memory_format)
        for t in (x, 2 * c + mean, g)
    ]


def away_from_kink(step, norm, x, c, grad, margin):
    """Drop the gradient where rounding decides on which side of 0 we are."""
    step, norm = copy.deepcopy((step, norm))
    step.activation = nn.Identity()
    for module in (step, norm):
        if module is not None:
            module.double()
    with steps.fused(False), torch.no_grad():
        total = step(x.double(), c.double(), norm)
    return grad * (total.abs() > margin * total.abs().mean()).to(grad)


def run(fused, step, norm, x, c, grad, dtype=None):
    """Outputs, all gradients and all buffers of one pass."""
    step, norm = copy.deepcopy((step, norm))
    modules = nn.ModuleDict({'step': step})
    if norm is not None:
        modules['norm'] = norm
    if dtype is not None:
        modules.to(dtype)
        x, c, grad = (t.to(dtype) for t in (x, c, grad))
    x, c = (t.clone().requires_grad_() for t in (x, c))
    with steps.fused(fused):
        out = step(x, c, norm)
    out.backward(grad)
    return {
        'out': out.detach(), 'x': x.grad, 'c': c.grad,
        **{k: p.grad for k, p in modules.named_parameters()},
        **dict(modules.named_buffers())
    }


def worst(got, expected):
    """Largest error of an entry, relative to its norm, and its name."""
    assert got.keys() == expected.keys()
    errors = {
        k: ((got[k].double() - v.double()).norm() /
            v.double().norm().clamp(min=1e-12)).item()
        for k, v in expected.items()
    }
    name = max(errors, key=errors.get)
    return errors[name], name
