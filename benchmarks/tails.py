"""The ends of blocks alone, forward and backward, beside plain PyTorch's."""

import argparse
from collections.abc import Iterator
from functools import partial

import torch
import torch.nn as nn
from torch import Tensor

from mmstepnet import attentions, steps
from mmstepnet.steps import ResidualStep
from mmstepnet.steps.branch import BranchStep, Place, Spot

from .rounds import Timed, measure

GATES = ('StepNet', 'SE', 'ECA', 'SEM', 'SRM')
SHAPES = ((256, 56), (512, 28), (1024, 14), (2048, 7))
"""Channels and sides of ResNet-50's stages at 224 px."""
SMALL = (4, 64, 4, 4)
"""Maps that take no time: what is left is the dispatch of operations."""
TOKENS = ((197, 384), (3136, 96), (784, 192), (196, 384), (49, 768))
"""Tokens and channels of ViT-S and of Swin-T's and ConvNeXt-T's stages."""


class Tail(Timed):
    """``relu(x + gate(x, f) * f)`` with ``f = norm(c)``, and its gradients.

    Args:
        args (Namespace): The command line.
        shape (tuple[int]): Of the maps.
        memory_format (torch.memory_format): Of the maps.
        gate (str, optional): Name of the gate. None is a plain block, in the
            operations of the hosts. Defaults to None.
        fused (bool): Whether to take the fused path whatever the size.
            Defaults to True.
        repeats (int): Tails that are timed together. Defaults to 1.
    """

    def __init__(
        self,
        args: argparse.Namespace,
        shape: tuple[int, ...],
        memory_format: torch.memory_format,
        gate: str | None = None,
        fused: bool = True,
        repeats: int = 1,
    ):
        super().__init__(args)
        torch.manual_seed(0)
        self.fused, self.repeats = fused, repeats
        self.norm = nn.BatchNorm2d(shape[1]).to(args.device)
        self.activation = nn.ReLU(inplace=True)
        self.residual = None
        parameters = list(self.norm.parameters())
        if gate is not None:
            self.residual = ResidualStep(
                getattr(attentions, gate)(shape[1]), self.activation
            )
            parameters += self.residual.to(args.device).parameters()
        self.x, self.c, self.grad = (
            torch.randn(shape, device=args.device).contiguous(
                memory_format=memory_format
            )
            for _ in range(3)
        )
        self.wanted = [
            self.x.requires_grad_(),
            self.c.requires_grad_(),
            *parameters,
        ]

    def step(self) -> None:
        """Take the tail and its gradients."""
        for _ in range(self.repeats):
            with steps.fused(self.fused):
                torch.autograd.grad(self.forward(), self.wanted, self.grad)

    def forward(self) -> Tensor:
        if self.residual is None:
            return self.activation(self.norm(self.c).add_(self.x))
        return self.residual(self.x, self.c, self.norm)


class Branch(Timed):
    """``x + gate(x, f) * f`` at a branch's end, and its gradients.

    Args:
        args (Namespace): The command line.
        shape (tuple[int]): Of the tokens, (N, L, C).
        gate (str, optional): Name of the gate. None is the addition alone.
            Defaults to None.
        fused (bool): Whether to take the step by hand where it may be.
            Defaults to True.
        repeats (int): Steps that are timed together. Defaults to 1.
    """

    def __init__(
        self,
        args: argparse.Namespace,
        shape: tuple[int, int, int],
        gate: str | None = None,
        fused: bool = True,
        repeats: int = 1,
    ):
        super().__init__(args)
        torch.manual_seed(0)
        self.fused, self.repeats = fused, repeats
        self.x, self.f, self.grad = (
            torch.randn(shape, device=args.device) for _ in range(3)
        )
        self.residual = None
        self.wanted = [self.x.requires_grad_(), self.f.requires_grad_()]
        if gate is not None:
            spot = Spot('', False, 0)
            self.residual = BranchStep(
                getattr(attentions, gate)(shape[2]),
                Place('step', spot, spot, 3, 0, 2, shape[2]),
            ).to(args.device)
            self.wanted += self.residual.parameters()

    def step(self) -> None:
        """Take the step and its gradients."""
        for _ in range(self.repeats):
            with steps.fused(self.fused):
                torch.autograd.grad(self.forward(), self.wanted, self.grad)

    def forward(self) -> Tensor:
        if self.residual is None:
            return self.x + self.f
        return self.x + self.residual(self.x, self.f)


def branch_tables(
    args: argparse.Namespace,
) -> Iterator[tuple[str, list[dict]]]:
    """Shape and rows: steps at branches' ends, over the addition alone."""
    for tokens, channels in TOKENS:
        shape = args.batch_size, tokens, channels
        contestants = {
            'plain': Branch(args, shape),
            'StepNet': Branch(args, shape, 'StepNet'),
            'SE': Branch(args, shape, 'SE'),
            'StepNet naive': Branch(args, shape, 'StepNet', fused=False),
        }
        yield (
            'x'.join(map(str, shape)),
            [
                dict(row, network=network)
                for network, row in measure(contestants, args).items()
            ],
        )


def tables(
    args: argparse.Namespace, formats: dict[str, torch.memory_format]
) -> Iterator[tuple[str, str, list[dict]]]:
    """Shape, format and rows: the four stages in each, then small maps."""
    shapes = [
        ((args.batch_size, channels, side, side), name, 1)
        for name in args.formats
        for channels, side in SHAPES
    ]
    for shape, name, repeats in (*shapes, (SMALL, 'contiguous', 20)):
        tail = partial(Tail, args, shape, formats[name], repeats=repeats)
        gates = GATES if shape == SMALL else GATES[:2]
        contestants = {
            'plain': tail(),
            **{gate: tail(gate) for gate in gates},
            'StepNet naive': tail('StepNet', fused=False),
        }
        yield (
            'x'.join(map(str, shape)),
            name,
            [
                dict(row, network=network)
                for network, row in measure(contestants, args).items()
            ],
        )
