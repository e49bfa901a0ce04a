"""What a tail launches, what its passes move, and metric-attention."""

import copy
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn as nn
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from mmstepnet import steps
from mmstepnet.propagation import metric_propagation
from mmstepnet.steps.kernels import backend, plain

from .common import (
    FORMATS,
    GATES,
    STAGES,
    Check,
    Outcome,
    Setting,
    fused_tails,
    maps,
    ratio,
    seconds,
    tail,
)

LAUNCHES = {'StepNet': 14}
CPU_TIME = {'StepNet': 1.6}
"""Targets of StepNet; those of every other gate are 18 and 2."""

BANDWIDTH = 0.7
"""Least share of a copy's bandwidth that a pass over maps has to reach."""


def checks(setting: Setting) -> Iterator[Check]:
    """Checks of this part."""
    for gate in GATES:
        if setting.device == 'cuda':
            yield f'kernels of a tail, {gate}', partial(
                _launches, setting, gate)
        yield f'CPU time of a tail over plain, {gate}', partial(
            _cpu_time, setting, gate)
    sizes = ((8, 6), ) if setting.quick else STAGES
    for dtype in (torch.bfloat16, torch.float32):
        for name in FORMATS:
            for channels, side in sizes:
                shape = (2 if setting.quick else 128, channels, side, side)
                label = f'{str(dtype)[6:]}, {name}, {shape}'
                yield f'tail over plain, {label}', partial(
                    _tail_ratio, setting, shape, dtype, name)
                yield f'bandwidth, {label}', partial(
                    _bandwidth, setting, shape, dtype, name)
    for tokens in (64, ) if setting.quick else (8192, 16384):
        for width in (62, 64):
            yield (f'metric-attention over dot product, {tokens} tokens, '
                   f'width {width}', partial(_metric, setting, tokens, width))


def _plain(norm: nn.Module, x: Tensor, c: Tensor) -> Tensor:
    return norm(c).add_(x).relu_()


def _passes(setting: Setting, gate: str, shape: tuple[int, ...],
            dtype: torch.dtype, memory_format: str,
            ) -> dict[str, Callable[[], None]]:
    """A tail forward and backward: plain, by reference, fused."""
    modules = tail(gate, shape[1]).to(setting.device)
    plain = copy.deepcopy(modules['norm'])
    x, c, grad = maps(setting, shape, dtype, FORMATS[memory_format])
    x.requires_grad_()
    c.requires_grad_()

    def take_plain():
        _plain(plain, x, c).backward(grad)

    def take(fused):
        with steps.fused(fused):
            modules['step'](x, c, modules['norm']).backward(grad)
    return dict(plain=take_plain, reference=partial(take, False),
                fused=partial(take, True))


def _launches(setting: Setting, gate: str) -> Outcome:
    found = {}
    passes = _passes(setting, gate, (32, 256, 28, 28), torch.bfloat16,
                     'channels_last')
    for name, take in passes.items():
        for _ in range(3):
            take()
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as trace:
            take()
            torch.cuda.synchronize()
        found[name] = sum(
            e.device_type == torch.autograd.DeviceType.CUDA
            for e in trace.events())
    target = LAUNCHES.get(gate, 18)
    return Outcome(', '.join(f'{k} {v}' for k, v in found.items()),
                   f'fused ≤ {target}', found['fused'] <= target)


def _cpu_time(setting: Setting, gate: str) -> Outcome:
    """Of launching alone: the device is not waited for between passes."""
    shape = (2, 64, 4, 4) if setting.device == 'cuda' else (4, 64, 4, 4)
    passes = _passes(setting, gate, shape, torch.float32, 'contiguous')
    times = {name: [] for name in passes}
    for _ in range(3 if setting.quick else 40):
        for name, take in passes.items():
            setting.synchronize()
            start = time.perf_counter()
            take()
            times[name].append(time.perf_counter() - start)
    medians = {k: statistics.median(v[len(v) // 4:])
               for k, v in times.items()}
    share = medians['fused'] / medians['plain']
    target = CPU_TIME.get(gate, 2)
    text = ', '.join(f'{k} {v * 1e6:.0f} µs' for k, v in medians.items())
    return Outcome(f'{share:.2f} ({text})', f'≤ {target}', share <= target)


def _tail_ratio(setting: Setting, shape: tuple[int, ...],
                dtype: torch.dtype, memory_format: str) -> Outcome:
    passes = _passes(setting, 'StepNet', shape, dtype, memory_format)
    with fused_tails() if setting.device == 'cuda' else steps.fused(True):
        found = seconds(setting, passes, 3 if setting.quick else 30, 3)
    fused = ratio(found, 'fused', 'plain')
    reference = ratio(found, 'reference', 'plain')
    return Outcome(f'{fused:.2f}, reference {reference:.2f}', '≤ 1.00',
                   fused <= 1)


def _bandwidth(setting: Setting, shape: tuple[int, ...], dtype: torch.dtype,
               memory_format: str) -> Outcome:
    x, c, grad = maps(setting, shape, dtype, FORMATS[memory_format])
    target = torch.empty_like(x)
    ops = backend(x) or plain
    a, b, d, e, g = torch.randn(5, *shape[:2], device=setting.device)
    runs = {
        'copy': (2, lambda: target.copy_(x)),
        'total': (1, lambda: ops.total(x)),
        'moments': (1, lambda: ops.moments(c)),
        'step': (3, lambda: ops.step(x, c, a[0], b, d, True)),
        'reduce': (3, lambda: ops.reduce(grad, x, c, a[0])),
        'gradients': (5, lambda: ops.gradients(grad, x, c, a, b, d, e, g,
                                               True, True))}
    found = seconds(setting, {k: f for k, (_, f) in runs.items()},
                    3 if setting.quick else 30, 3)
    size = x.numel() * x.element_size()
    rates = {k: passes * size / statistics.median(found[k]) / 1e12
             for k, (passes, _) in runs.items()}
    copied = rates.pop('copy')
    worst = min(rates.values()) / copied
    text = ', '.join(f'{k} {v:.2f}' for k, v in rates.items())
    return Outcome(f'{worst:.0%} of a copy\'s {copied:.2f} TB/s ({text})',
                   f'≥ {BANDWIDTH:.0%}', worst >= BANDWIDTH)


def _metric(setting: Setting, tokens: int, width: int) -> Outcome:
    half = torch.bfloat16
    q, k, v = (torch.randn(1, 8, tokens, width, device=setting.device,
                           dtype=half, requires_grad=True) for _ in range(3))

    def metric():
        metric_propagation(q, k, v).sum().backward()

    def dot():
        nn.functional.scaled_dot_product_attention(
            q, k, v).sum().backward()
    found = seconds(setting, dict(dot=dot, metric=metric),
                    2 if setting.quick else 10, 2)
    return Outcome(f'{ratio(found, "metric", "dot"):.2f}')
