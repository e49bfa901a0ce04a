"""Networks that tests write by the code of a block."""

import torch
import torch.nn as nn

from mmstepnet.stiffness import TrajectoryRecorder
from tests.utils import perturb

X = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(3))
MAPS = torch.randn(2, 8, 5, 5, generator=torch.Generator().manual_seed(4))


class Block(nn.Module):
    """A block by its code: ``code(block, x)`` with layers a, b, c, norm."""

    def __init__(self, code, maps=False):
        super().__init__()
        for name in 'abc':
            layer = nn.Conv2d(8, 8, 1) if maps else nn.Linear(8, 8)
            setattr(self, name, layer)
        self.norm = nn.BatchNorm2d(8) if maps else nn.LayerNorm(8)
        self.scale = nn.Parameter(torch.rand(1, 8, 1, 1) + 0.5)
        self.code = code

    def forward(self, x):
        return self.code(self, x)


def build(code, maps=False, count=3):
    model = nn.Sequential(*[Block(code, maps) for _ in range(count)])
    return perturb(model).eval()


def record(code, x=X, maps=False):
    model = build(code, maps)
    with TrajectoryRecorder(model) as recorder, torch.no_grad():
        model(x)
    return model, recorder


def size(t):
    return t.detach().double().flatten(1).norm(dim=1)


def assert_ratio(recorder, model, x, branch, reading='adaptive'):
    """NSI of the one step of each block, by its formula in float64."""
    assert recorder.blocks == ['1', '2']
    with torch.no_grad():
        for k in (0, 1, 2):
            if k:
                expected = size(branch(model[k], x)) / size(x)
                torch.testing.assert_close(
                    recorder.record[reading][:, k - 1].double(), expected,
                    rtol=1e-5, atol=0)
            x = model[k](x)
