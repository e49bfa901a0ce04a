"""What the parts of the check share: outcomes, tails, networks, ratios."""

import copy
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch import Tensor

from mmstepnet import insert_steps, steps
from mmstepnet.attentions import ATTENTIONS, ChannelGate, build_attention
from mmstepnet.steps import ResidualStep, residual

FORMATS = {'contiguous': torch.contiguous_format,
           'channels_last': torch.channels_last}
STAGES = ((256, 56), (512, 28), (1024, 14), (2048, 7))
"""Channels and side of the maps behind the stages of ResNet-50 at 224."""

GATES = tuple(
    name for name in ('StepNet', 'SE', 'ECA', 'SEM', 'SRM')
    if issubclass(ATTENTIONS.get(name), ChannelGate))


@dataclass(frozen=True)
class Outcome:
    """What one check found.

    Attributes:
        value (str): The measurement.
        target (str): What it has to be; empty where it is reported only.
        passed (bool, optional): None where there is no target.
    """

    value: str
    target: str = ''
    passed: bool | None = None


Check = tuple[str, Callable[[], Outcome]]


@dataclass(frozen=True)
class Setting:
    """Where the checks run.

    Attributes:
        device (str): ``'cuda'``, or ``'cpu'`` for a dry run.
        quick (bool): Small shapes and few rounds, for the dry run.
    """

    device: str
    quick: bool

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.device == 'cuda':
            torch.cuda.synchronize()


class NotTakenError(AssertionError):
    """The path that a check names was not taken."""


@contextmanager
def fused_tails(expected: int | None = None) -> Iterator[list[int]]:
    """Count the tails that take the fused path.

    Args:
        expected (int, optional): How many have to. None is one at least.

    Raises:
        NotTakenError: Another number did.
    """
    taken, original = [], residual.fused_residual_step

    def counted(*args, **kwargs):
        taken.append(1)
        return original(*args, **kwargs)
    residual.fused_residual_step = counted
    try:
        yield taken
    finally:
        residual.fused_residual_step = original
    if len(taken) != expected if expected is not None else not taken:
        wanted = 'any' if expected is None else expected
        raise NotTakenError(f'the fused path was taken by {len(taken)} '
                            f'tails, not by {wanted}')


def tail(gate: str, channels: int, norm: Callable = nn.BatchNorm2d,
         ) -> nn.ModuleDict:
    """A step and the norm before it, with random parameters."""
    modules = nn.ModuleDict(dict(
        step=ResidualStep(build_attention(dict(type=gate), channels),
                          nn.ReLU()),
        norm=norm(channels)))
    perturb(modules)
    return modules


def perturb(module: nn.Module) -> nn.Module:
    """Random parameters, none at the start where gradients vanish."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return module


def maps(setting: Setting, shape: tuple[int, ...], dtype: torch.dtype,
         memory_format: torch.memory_format) -> list[Tensor]:
    """State, branch and gradient; images and channels differ in means."""
    found = []
    for _ in range(3):
        t = torch.randn(shape, device=setting.device)
        t += torch.randn(shape[:2], device=setting.device)[..., None, None]
        found.append(t.to(dtype).contiguous(memory_format=memory_format))
    return found


def resnet(attention: str | None = 'StepNet') -> nn.Module:
    """Torchvision's ResNet-50, with the paper's gate in its blocks."""
    from torchvision.models import resnet50
    torch.manual_seed(0)
    model = resnet50()
    if attention:
        insert_steps(model, attention, init_step=None)
    return perturb(model)


def detector(attention: str | None = 'StepNet') -> nn.Module:
    """Torchvision's Faster R-CNN R50-FPN, its BNs frozen."""
    from torchvision.models.detection import fasterrcnn_resnet50_fpn
    torch.manual_seed(0)
    model = fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None)
    if attention:
        insert_steps(model, attention, blocks=['layer2', 'layer3', 'layer4'])
    return model


def flat_gradients(module: nn.Module) -> Tensor:
    """All gradients, one vector in float64."""
    return torch.cat([p.grad.double().flatten()
                      for p in module.parameters() if p.grad is not None])


def error(found: Tensor, exact: Tensor) -> float:
    """Relative error in the 2-norm."""
    found, exact = found.double(), exact.double()
    return float((found - exact).norm() / exact.norm())


def network_gradients(model: nn.Module, x: Tensor, fused: bool,
                      autocast: torch.dtype | None = None,
                      scaled: bool = False) -> Tensor:
    """Gradients of a copy of the model, by the fused or reference path."""
    model = copy.deepcopy(model)
    scaler = torch.amp.GradScaler(x.device.type, enabled=scaled,
                                  init_scale=2.0**12)
    # Around the backward, too: a checkpoint computes again there.
    with steps.fused(fused):
        with torch.autocast(x.device.type, autocast,
                            enabled=autocast is not None):
            loss = model(x).double().square().mean()
        scaler.scale(loss).backward()
    return flat_gradients(model) / (scaler.get_scale() if scaled else 1)


def seconds(setting: Setting, contestants: dict[str, Callable[[], object]],
            rounds: int, warmup: int) -> dict[str, list[float]]:
    """Times of the contestants, which take turns in every round."""
    found = {name: [] for name in contestants}
    for k in range(warmup + rounds):
        for name, take in contestants.items():
            setting.synchronize()
            start = time.perf_counter()
            take()
            setting.synchronize()
            if k >= warmup:
                found[name].append(time.perf_counter() - start)
    return found


def ratio(found: dict[str, list[float]], name: str, base: str) -> float:
    """Median over the rounds of a contestant's time over another's."""
    return statistics.median(
        a / b for a, b in zip(found[name], found[base]))
