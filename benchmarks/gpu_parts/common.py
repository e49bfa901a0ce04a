"""What the parts of the check share: outcomes, tails, networks, times."""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest import mock

import torch
import torch.nn as nn
from torch import Tensor

from mmstepnet import insert_steps, steps
from mmstepnet.attentions import build_attention
from mmstepnet.steps import ResidualStep
from mmstepnet.steps.tail.dispatch import Tail

FORMATS = {'contiguous': torch.contiguous_format,
           'channels_last': torch.channels_last}


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

    @property
    def on_cuda(self) -> bool:
        return self.device == 'cuda'

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.on_cuda:
            torch.cuda.synchronize()


class NotTakenError(AssertionError):
    """The path that a check names was not taken."""


@contextmanager
def fused_tails(expected: int | None = None) -> Iterator[None]:
    """Switch the fused path on and count the tails that take it.

    Args:
        expected (int, optional): How many have to. None is one at least.

    Raises:
        NotTakenError: Another number did.
    """
    taken, apply = [], Tail.apply

    def counted(*args):
        taken.append(1)
        return apply(*args)
    with mock.patch.object(Tail, 'apply', counted), steps.fused(True):
        yield
    if len(taken) != expected if expected is not None else not taken:
        wanted = 'any' if expected is None else expected
        raise NotTakenError(f'the fused path was taken by {len(taken)} '
                            f'tails, not by {wanted}')


@contextmanager
def exact_values(exact: bool = True) -> Iterator[None]:
    """Let float32 be float32: no TF32, where values are compared."""
    owners = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [owner.allow_tf32 for owner in owners]
    try:
        for owner, allowed in zip(owners, before):
            owner.allow_tf32 = allowed and not exact
        yield
    finally:
        for owner, allowed in zip(owners, before):
            owner.allow_tf32 = allowed


def tail(gate: str | None, channels: int) -> nn.ModuleDict:
    """A step and the norm before it, with random parameters."""
    attention = gate and build_attention(dict(type=gate), channels)
    return perturb(nn.ModuleDict(dict(
        step=ResidualStep(attention, nn.ReLU()),
        norm=nn.BatchNorm2d(channels))))


def perturb(module: nn.Module) -> nn.Module:
    """Random parameters, none at the start where gradients vanish."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
        for buffer in module.buffers():
            if buffer.is_floating_point():
                buffer.add_(torch.rand_like(buffer) * 0.05)
    return module


def maps(setting: Setting, shape: tuple[int, ...], dtype: torch.dtype,
         memory_format: str) -> list[Tensor]:
    """State, branch and gradient; images and channels differ in means."""
    found = []
    for _ in range(3):
        t = torch.randn(shape, device=setting.device, dtype=dtype)
        t += torch.randn(shape[:2], device=setting.device)[..., None, None]
        found.append(t.contiguous(memory_format=FORMATS[memory_format]))
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


def error(found: Tensor, exact: Tensor) -> float:
    """Relative error in the 2-norm."""
    found, exact = found.double(), exact.double()
    return float((found - exact).norm() / exact.norm())


def network_gradients(model: nn.Module, x: Tensor,
                      autocast: torch.dtype | None = None) -> Tensor:
    """Gradients of all parameters, one vector in float64.

    By ``backward``, for wrappers and checkpoints that know no other.
    """
    scale = 2.0**12 if autocast == torch.float16 else 1
    model.zero_grad()
    with torch.autocast(x.device.type, autocast,
                        enabled=autocast is not None):
        loss = model(x).double().square().mean()
    (loss * scale).backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    return torch.cat([getattr(g, 'full_tensor', lambda g=g: g)().double()
                      .flatten() for g in grads]) / scale


def seconds(setting: Setting, contestants: dict[str, Callable[[], object]],
            rounds: int, warmup: int = 3,
            device: bool = False) -> dict[str, list[float]]:
    """Times of the contestants, which take turns in every round.

    Args:
        setting (Setting): Where they run.
        contestants (dict[str, Callable]): By name.
        rounds (int): That are timed; two where the setting is quick.
        warmup (int): Rounds before; one likewise. Defaults to 3.
        device (bool): Whether to time what the device does alone, by its
            events; else launching counts as well. Defaults to False.
    """
    found = {name: [] for name in contestants}
    clock = _device_time if device and setting.on_cuda else _wall_time
    if setting.quick:
        rounds, warmup = 2, 1
    for k in range(warmup + rounds):
        for name, take in contestants.items():
            setting.synchronize()
            elapsed = clock(setting, take)
            if k >= warmup:
                found[name].append(elapsed)
    return found


def _wall_time(setting: Setting, take: Callable) -> float:
    start = time.perf_counter()
    take()
    setting.synchronize()
    return time.perf_counter() - start


def _device_time(setting: Setting, take: Callable) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(20_000_000)  # some 10 ms, for the host to go ahead
    start.record()
    take()
    end.record()
    setting.synchronize()
    return start.elapsed_time(end) / 1e3


def ratios(found: dict[str, list[float]],
           base: str = 'plain') -> dict[str, float]:
    """Medians over the rounds of the contestants' times over one's."""
    return {name: statistics.median(a / b for a, b in zip(own, found[base]))
            for name, own in found.items() if name != base}


def listed(numbers: dict[str, float], form: str) -> str:
    """Numbers by name, as a row states them."""
    return ', '.join(f'{name} {number:{form}}'
                     for name, number in numbers.items())
