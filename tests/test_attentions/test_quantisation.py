"""Quantised networks with steps."""

import pytest
import torch
import torch.nn as nn
from torch.ao.quantization import get_default_qconfig_mapping, quantize_dynamic
from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

from mmstepnet.attentions.base import build_attention
from mmstepnet.steps import ResidualStep

NAMES = ('SE', 'ECA', 'SRM', 'FCA', 'SGE', 'CBAM', 'StepNet', 'SEM',
         'OursSharedMLP')
"""One of each kind of layers, and all that tools have stopped at."""


class Block(nn.Module):
    """A residual block of 32 channels."""

    def __init__(self, name):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(32, 32, 3, padding=1)
        self.step = ResidualStep(
            build_attention(dict(type=name), 32, 8), nn.ReLU())

    def forward(self, x):
        return self.step(x, self.conv(x))


def near(found, expected):
    """As near as eight bits are."""
    assert (found - expected).abs().max() < 0.1 * expected.abs().max()


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('name', NAMES)
def test_quantised(name):
    model, x = Block(name).eval(), torch.randn(2, 32, 8, 8)
    expected = model(x)
    near(quantize_dynamic(model, {nn.Linear})(x), expected)
    prepared = prepare_fx(model, get_default_qconfig_mapping('x86'), (x, ))
    prepared(x)
    near(convert_fx(prepared)(x), expected)
