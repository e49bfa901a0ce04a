"""Quantised networks with steps."""

import pytest
import torch
import torch.nn as nn
from torch.ao.quantization import get_default_qconfig_mapping, quantize_dynamic
from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

from mmstepnet.attentions import build_attention
from tests.utils import StepBlock

NAMES = (
    'SE',
    'ECA',
    'SRM',
    'FCA',
    'SGE',
    'CBAM',
    'StepNet',
    'SEM',
    'OursSharedMLP',
    'LayerScale',
)
"""One of each kind of layers, and all that tools have stopped at."""


def near(found, expected):
    """As near as eight bits are."""
    assert (found - expected).abs().max() < 0.1 * expected.abs().max()


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('name', NAMES)
def test_quantised(name):
    model = StepBlock(build_attention(dict(type=name), 8, 8)).eval()
    x = torch.randn(2, 8, 8, 8)
    expected = model(x)
    near(quantize_dynamic(model, {nn.Linear})(x), expected)
    prepared = prepare_fx(model, get_default_qconfig_mapping('x86'), (x,))
    prepared(x)
    near(convert_fx(prepared)(x), expected)
