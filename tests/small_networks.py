"""Small residual networks, with steps put in and written by hand."""

import copy

import torch
import torch.nn as nn
from torch import Tensor
from torchvision.models.resnet import BasicBlock

from mmstepnet import insert_steps
from tests.utils import perturb_gates, seeded


class Mix(nn.Module):
    """Mixes tokens, as an attention does."""

    def __init__(self, channels):
        super().__init__()
        self.proj = nn.Linear(channels, channels)

    def forward(self, x):
        return self.proj(x + x.flip(1).sin()).tanh()


class TokenBlock(nn.Module):
    """One branch is given to a dropout, the other one a container returns."""

    def __init__(self, channels=8):
        super().__init__()
        self.norm1 = nn.LayerNorm(channels)
        self.attn = Mix(channels)
        self.drop = nn.Dropout(0.0)
        self.norm2 = nn.LayerNorm(channels)
        self.mlp = nn.Sequential(
            nn.Linear(channels, 2 * channels),
            nn.GELU(),
            nn.Linear(2 * channels, channels),
        )

    def forward(self, x):
        x = x + self.drop(self.attn(self.norm1(x)))
        return x + self.mlp(self.norm2(x))

    def by_hand(self, x, attn_gate, mlp_gate):
        f = self.drop(self.attn(self.norm1(x)))
        x = x + f * attn_gate(x.mean(1), f.mean(1))[:, None]
        f = self.mlp(self.norm2(x))
        return x + f * mlp_gate(x.mean(1), f.mean(1))[:, None]


class MapBlock(nn.Module):
    """A branch that ends in a norm, behind which the block adds in place."""

    def __init__(self, channels=8):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x):
        out = self.norm(self.conv2(self.act(self.conv1(x))))
        out += x
        return self.act(out)

    def by_hand(self, x, gate):
        f = self.norm(self.conv2(self.conv1(x).relu()))
        step = gate(x.mean((2, 3)), f.mean((2, 3)))[..., None, None]
        return (x + f * step).relu()


class ResNetBlock(BasicBlock):
    """One whose norm, sum and ReLU the step takes in."""

    def __init__(self, channels=8):
        super().__init__(channels, channels)

    def by_hand(self, x, gate):
        f = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        step = gate(x.mean((2, 3)), f.mean((2, 3)))[..., None, None]
        return (x + f * step).relu()


NETWORKS = {
    'tokens': (TokenBlock, (4, 5, 8)),
    'maps': (MapBlock, (4, 8, 6, 6)),
    'fused': (ResNetBlock, (4, 8, 6, 6)),
}


def network(kind: str) -> nn.Sequential:
    """Three blocks, in float64."""
    torch.manual_seed(0)
    return nn.Sequential(*(NETWORKS[kind][0]() for _ in range(3))).double()


def inputs(kind: str) -> Tensor:
    """Four samples."""
    return seeded(*NETWORKS[kind][1], seed=1).double()


class ByHand(nn.Module):
    """A network without hooks, and gates that it calls itself."""

    def __init__(self, plain, stepped):
        super().__init__()
        self.blocks = plain
        self.gates = nn.ModuleList(
            nn.ModuleList(
                copy.deepcopy(child.attention)
                for child in block.children()
                if hasattr(child, 'attention')
            )
            for block in stepped
        )

    def forward(self, x):
        for block, gates in zip(self.blocks, self.gates):
            x = block.by_hand(x, *gates)
        return x


def stepped_pair(kind: str, **options) -> tuple[nn.Module, nn.Module]:
    """A network with moved gates, and the same written by hand."""
    plain = network(kind)
    model = copy.deepcopy(plain)
    insert_steps(model, example=inputs(kind), **options)
    perturb_gates(model)
    return model, ByHand(plain, model)


class Around(nn.Module):
    """Somebody's wrapper."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)
