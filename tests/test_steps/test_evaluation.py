"""Networks that get ready for evaluation in a ``train`` of their own."""

import copy

import pytest
import torch
import torch.nn as nn

import mmstepnet
from mmstepnet import TrajectoryRecorder

X = torch.randn(4, 5, 8, generator=torch.Generator().manual_seed(0))


class Attention(nn.Module):
    """As LeViT's in MMPretrain: what evaluation needs is made in train."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.bias = nn.Parameter(torch.randn(5, 5))

    @torch.no_grad()
    def train(self, mode=True):
        super().train(mode)
        if mode and hasattr(self, 'kept'):
            del self.kept
        elif not mode:
            self.kept = self.bias.exp()
        return self

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        bias = self.bias.exp() if self.training else self.kept
        return (q @ k.transpose(1, 2) + bias).softmax(-1) @ v


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.attn = Attention()

    def forward(self, x):
        return x + self.attn(self.norm(x))


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


@pytest.mark.parametrize('do', [
    lambda model: mmstepnet.find_steps(model, X),
    lambda model: mmstepnet.measure_stiffness(model, [X]),
    lambda model: mmstepnet.insert_steps(model, example=X),
    lambda model: mmstepnet.ablate_blocks(model, recorded, example=X),
])
def test_the_mode_is_that_of_the_network_and_restored(do):
    torch.manual_seed(0)
    model = Net(*(Block() for _ in range(3))).train()
    model[1].norm.eval()
    model[0].norm.weight.requires_grad_(True)
    before = state(model)
    do(model)
    assert state(model) == before
    copy.deepcopy(model)


def state(model):
    """Modes, what is kept for evaluation, which parameters are trained."""
    names = ['norm', 'attn']
    return [[(getattr(block, name).training,
              hasattr(getattr(block, name), 'kept'),
              [p.requires_grad for p in getattr(block, name).parameters()])
             for name in names] for block in model]
