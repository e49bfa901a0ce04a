"""Operations against counts by hand and the claims of the README."""

from pathlib import Path

import pytest
import torch
import torch.nn as nn
from torch.utils import flop_counter
from torch.utils._python_dispatch import TorchDispatchMode

from mmstepnet.attentions import ATTENTIONS
from mmstepnet.models import StepResNet, StepResNetCIFAR
from mmstepnet.steps import fused
from projects.reproduction.complexity import (
    FORMULAS,
    count_flops,
    measure_complexity,
)

CONFIGS = Path(__file__).resolve().parents[3] / 'configs'
# Nothing is computed by these.
FREE = {
    'empty', 'view', 't', 'select', 'slice', 'unsqueeze', 'expand', 'clone',
    'transpose', 'permute', 'stack', 'cat', 'alias', '_unsafe_view', 'copy_',
    'detach', '_to_copy', 'repeat_interleave', 'split'
}


def test_plain_resnet50_by_hand():
    """Every layer's own shape; two operations for a multiply-add."""
    model = StepResNet(50, attention=None, host='mmpretrain').eval()
    flops = count_flops(model, (1, 3, 64, 96))
    expected = dict(convolution=0, norm=0, relu=0)

    def count(module, inputs, out):
        if isinstance(module, nn.Conv2d):
            expected['convolution'] += 2 * out.numel() * module.weight[
                0].numel()
        elif isinstance(module, nn.BatchNorm2d):
            expected['norm'] += 2 * out.numel()
        elif isinstance(module, nn.ReLU):
            expected['relu'] += out.numel()

    for module in model.modules():
        module.register_forward_hook(count)
    with torch.no_grad():
        model(torch.rand(1, 3, 64, 96))
    assert flops['convolution'] == expected['convolution']
    norms = sum(n for name, n in flops.items() if 'batch_norm' in name)
    assert norms == expected['norm']
    assert flops.get('relu_', 0) + flops.get('relu', 0) == expected['relu']


def test_a_network_whose_train_returns_nothing():
    """As those of MMPretrain and MMDetection."""
    class Quiet(nn.Conv2d):

        def train(self, mode=True):
            super().train(mode)

    flops = count_flops(Quiet(3, 4, 1, bias=False), (1, 3, 5, 5))
    assert flops['convolution'] == 2 * 3 * 4 * 25


@pytest.mark.parametrize('layer, cost', [
    (nn.SiLU(inplace=True), 1), (nn.Hardswish(inplace=True), 1),
    (nn.Hardsigmoid(), 1), (nn.LeakyReLU(inplace=True), 1),
    (nn.ReLU6(inplace=True), 1), (nn.Mish(), 1), (nn.PReLU(), 1),
    (nn.ELU(inplace=True), 1), (nn.Softplus(), 1), (nn.GroupNorm(2, 4), 7),
])
def test_layers_of_other_networks(layer, cost):
    flops = count_flops(layer, (1, 4, 5, 6))
    assert sum(flops.values()) == cost * 4 * 5 * 6


def test_adaptor_by_hand():
    """Pooling twice, the product, and what a channel costs."""
    plain = count_flops(StepResNetCIFAR(20, attention=None), (1, 3, 32, 32))
    step = count_flops(
        StepResNetCIFAR(20, attention=dict(type='StepNet')), (1, 3, 32, 32))
    blocks = [(16, 32 * 32)] * 3 + [(32, 16 * 16)] * 2 + [(64, 8 * 8)] * 2
    pixels = sum(c * s for c, s in blocks)
    extra = sum(step.values()) - sum(plain.values())
    channels = sum(c for c, _ in blocks)
    # p, q and f * step read the maps; each channel adds a few operations.
    assert 3 * pixels < extra <= 3 * pixels + 12 * channels


def test_overhead_of_stepnet_on_resnet50():
    """Issue 4: below 0.2 % of the operations and 0.4 % of the parameters."""
    plain, step = (
        measure_complexity(
            str(CONFIGS / 'imagenet' / f'resnet50_{name}_imagenet.py'))
        for name in ('plain', 'stepnet'))
    assert plain.input_size == step.input_size == (224, 224)
    assert 0 < step.flops / plain.flops - 1 < 0.002
    assert 0 < step.parameters / plain.parameters - 1 < 0.004


# The second is the name in PyTorch 2.1.
COUNTED = getattr(flop_counter, 'flop_registry', None) or (
    flop_counter.flop_mapping)


class Operators(TorchDispatchMode):

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        packet = func._overloadpacket
        if packet not in COUNTED:
            self.names.add(str(packet).rpartition('.')[2])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize('attention', sorted(set(ATTENTIONS) - {'Plain'}))
def test_no_operator_is_forgotten(attention):
    model = StepResNetCIFAR(20, attention=dict(type=attention)).eval()
    with torch.no_grad(), fused(False), Operators() as seen:
        model.to('meta')(torch.empty(1, 3, 32, 32, device='meta'))
    assert seen.names - set(FORMULAS) <= FREE


def test_detectors_are_counted_to_the_neck():
    size = measure_complexity(
        str(CONFIGS / 'coco' / 'faster_rcnn_r50_plain_coco.py'))
    assert size.input_size == (800, 1344)
    assert size.part == 'backbone and neck'
