"""Networks that get ready for evaluation in a ``train`` of their own."""

import copy

import pytest
import torch
import torch.nn as nn

import mmstepnet
from mmstepnet import TrajectoryRecorder

X = torch.randn(4, 5, 8, generator=torch.Generator().manual_seed(0))


class Block(nn.Module):
    """As LeViT's in MMPretrain: what evaluation needs is made in train."""

    def __init__(self):
        super().__init__()
        self.norm, self.proj = nn.LayerNorm(8), nn.Linear(8, 8)
        self.bias = nn.Parameter(torch.randn(5, 5))

    @torch.no_grad()
    def train(self, mode=True):
        super().train(mode)
        vars(self).pop('kept', None)
        if not mode:
            self.kept = self.bias.exp()
        return self

    def forward(self, x):
        bias = self.bias.exp() if self.training else self.kept
        return x + self.proj(bias @ self.norm(x))


class Net(nn.Sequential):
    """Freezes its first block, as OpenMMLab's backbones do."""

    def train(self, mode=True):
        super().train(mode)
        self[0].eval().requires_grad_(False)
        return self


def recorded(model):
    with TrajectoryRecorder(model) as recorder:
        model(X)
    return recorder.trajectories().nsi().mean()


def state(model):
    """Modes, what is kept for evaluation, which parameters are trained."""
    return [(block.training, block.norm.training, hasattr(block, 'kept'),
             [p.requires_grad for p in block.norm.parameters()])
            for block in model]


@pytest.mark.parametrize('do', [
    lambda model: mmstepnet.find_steps(model, X),
    lambda model: mmstepnet.measure_stiffness(model, [X]),
    lambda model: mmstepnet.insert_steps(model, example=X),
    lambda model: mmstepnet.ablate_blocks(model, recorded, example=X),
])
def test_the_mode_is_that_of_the_network_and_restored(do):
    model = Net(*(Block() for _ in range(3))).train()
    model[1].norm.eval()
    model[0].norm.weight.requires_grad_(True)
    before = state(model)
    do(model)
    assert state(model) == before
    copy.deepcopy(model)
