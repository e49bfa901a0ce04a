"""The fused tail and compilers, exporters and small maps."""

import copy
import warnings

import pytest
import torch
import torch.nn as nn

from mmstepnet import steps
from mmstepnet.attentions import StepNet
from mmstepnet.steps import ResidualStep
from mmstepnet.steps.tail import dispatch
from tests.programs import run_tool
from tests.test_steps.cases import build, inputs, worst


class Net(nn.Module):
    """Two blocks of a convolution, a norm and a step."""

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1)
                                   for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(4) for _ in range(2))
        self.steps = nn.ModuleList(
            ResidualStep(StepNet(4), nn.ReLU(inplace=True))
            for _ in range(2))

    def forward(self, x):
        for conv, norm, step in zip(self.convs, self.norms, self.steps):
            x = step(x, conv(x), norm)
        return x


def gradients(net, function, x):
    net.zero_grad()
    function(x).square().mean().backward()
    return {**{k: p.grad for k, p in net.named_parameters()},
            **dict(net.named_buffers())}


def test_compile_of_a_training_step(calls):
    """The reference path, without a graph break, and equal."""
    torch.compiler.reset()
    net = Net()
    x = torch.randn(3, 4, 6, 6)
    with steps.fused(False):
        twin = copy.deepcopy(net)
        expected = gradients(twin, twin, x)
    compiled = torch.compile(net, backend='eager', fullgraph=True)
    found = gradients(net, compiled, x)
    assert not calls
    error, name = worst(found, expected)
    assert error < 1e-5, name
    assert net.norms[0].num_batches_tracked == 1
    torch.compiler.reset()


def test_traced_and_exported(calls):
    net = Net().eval()
    args = (torch.randn(3, 4, 6, 6), )
    expected = net(*args)
    calls.clear()
    with warnings.catch_warnings():  # which a tracer gives where it is asked
        warnings.simplefilter('error', torch.jit.TracerWarning)
        traced = torch.jit.trace(net, args, check_trace=False)
    exported = torch.export.export(net, args).module()
    assert not calls
    for other in (traced, exported):
        torch.testing.assert_close(other(*args), expected)


SCRIPT = """
import sys, torch, torch.nn as nn
from mmstepnet.attentions import SE, SRM, StepNet
from mmstepnet.steps import ResidualStep
from mmstepnet.steps.tail import dispatch
for gate in (StepNet, SE, SRM):
    conv, norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
    step = ResidualStep(gate(4), nn.ReLU(inplace=True))
    net = nn.ModuleList([conv, norm, step])
    for _ in range(2):
        x = torch.randn(3, 4, 6, 6)
        step(x, conv(x), norm).square().sum().backward()
        with torch.no_grad():
            for p in net.parameters():
                p -= 0.01 * p.grad
                p.grad = None
print([m for m in sys.modules
       if m.startswith(('torch._dynamo', 'torch._inductor', 'triton'))])
"""


@pytest.mark.skipif(torch.__version__ < (2, 2),
                    reason='older ones import it themselves')
def test_no_compiler_is_imported_by_a_training_step():
    assert run_tool('-c', SCRIPT).stdout.strip() == '[]'


def test_small_maps_on_a_cpu_take_the_reference_path(calls, monkeypatch):
    monkeypatch.setattr(dispatch, 'FEWEST_VALUES', 2**10)
    step, norm = build(StepNet, 8)
    for side, fused in ((7, 0), (8, 1)):
        x, c, _ = inputs((2, 8, side, 8), torch.float32)
        step(x, c, norm)
        assert len(calls) == fused
