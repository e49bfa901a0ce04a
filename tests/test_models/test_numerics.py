"""Half precision: nothing overflows."""

import pytest
import torch
import torch.nn as nn

from mmstepnet import steps
from mmstepnet.attentions import ATTENTIONS, build_attention
from mmstepnet.steps import ResidualStep
from tests.utils import not_on_torch_21

CHANNELS = 64
TOLERANCES = {torch.float16: 5e-3, torch.bfloat16: 3e-2}


def attention(name):
    torch.manual_seed(0)
    module = build_attention(dict(type=name), CHANNELS, map_size=8)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.1)
    return module


@pytest.mark.parametrize('scale', [1e-4, 2e3])
@pytest.mark.parametrize('dtype', [
    pytest.param(
        torch.float16,
        marks=not_on_torch_21('has no float16 autocast on CPU')),
    torch.bfloat16,
])
@pytest.mark.parametrize('name, fused', [
    *((name, False) for name in sorted(set(ATTENTIONS) - {'Plain'})),
    ('StepNet', True)])
def test_large_and_tiny_activations(name, dtype, scale, fused):
    """The sum over a map of 2e3 is 65 times what float16 reaches."""
    torch.manual_seed(1)
    x, f = ((torch.rand(4, CHANNELS, 48, 48) + 0.5) * scale for _ in 'xf')
    x, f = x.to(dtype), f.to(dtype)
    step = ResidualStep(attention(name), nn.ReLU())
    exact = ResidualStep(attention(name), nn.ReLU()).double()
    with steps.fused(fused), torch.autocast('cpu', dtype=dtype):
        out = step(x, f, None)
        grad = torch.autograd.grad(out.float().mean(), step.parameters(),
                                   allow_unused=True)
    with steps.fused(False):
        expected = exact(x.double(), f.double(), None)
    assert out.isfinite().all()
    assert all(g is None or g.isfinite().all() for g in grad)
    error = (out.double() - expected).norm() / expected.norm()
    assert error < TOLERANCES[dtype]
