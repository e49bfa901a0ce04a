"""What a tail launches, how long it takes, and what its passes move."""

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from unittest import mock

import torch
from torch.profiler import ProfilerActivity, profile

from mmstepnet import steps
from mmstepnet.steps.tail import dispatch
from mmstepnet.steps.tail.formulas import Parameters

from ..tails import SHAPES
from .common import (
    FORMATS,
    Check,
    Outcome,
    Setting,
    fused_tails,
    listed,
    maps,
    ratios,
    seconds,
    tail,
)

LAUNCHES, CPU_TIME = 6, 1.2
"""Most kernels of a tail, and CPU time over a plain one's."""

BANDWIDTH = 0.7
"""Least share of a copy's bandwidth that a pass over maps has to reach."""

MOVED = dict(copy=2, pool=2, write=3, reduce=3, write_gradients=5, forward=5,
             backward=8)
"""Maps that a pass reads or writes; forward and backward have two each."""


def checks(setting: Setting) -> Iterator[Check]:
    """Checks of this part."""
    if setting.on_cuda:
        yield 'kernels of a tail', partial(_launches, setting)
    yield 'CPU time of a tail over plain', partial(_cpu_time, setting)
    sizes = ((8, 6), ) if setting.quick else SHAPES
    for dtype in (torch.bfloat16, torch.float32):
        for name in FORMATS:
            for channels, side in sizes:
                shape = (2 if setting.quick else 128, channels, side, side)
                label = f'{str(dtype)[6:]}, {name}, {shape}'
                yield f'device time of a tail over plain, {label}', partial(
                    _device_time, setting, shape, dtype, name)
                yield f'bandwidth, {label}', partial(
                    _bandwidth, setting, shape, dtype, name)


def _tails(setting: Setting, shape: tuple[int, ...], dtype: torch.dtype,
           memory_format: str) -> dict[str, Callable[[], object]]:
    """A tail forward and backward: plain, SE's, by reference, fused."""
    x, c, grad = maps(setting, shape, dtype, memory_format)
    x.requires_grad_()
    c.requires_grad_()

    def take(modules, fused):
        with steps.fused(fused):
            out = (modules['step'](x, c, modules['norm']) if modules[
                'step'].attention else
                modules['norm'](c).add_(x).relu_())
            return torch.autograd.grad(
                out, [x, c, *modules.parameters()], grad)
    return {name: partial(take, tail(gate, shape[1]).to(setting.device),
                          name == 'fused')
            for name, gate in dict(plain=None, SE='SE', reference='StepNet',
                                   fused='StepNet').items()}


def _launches(setting: Setting) -> Outcome:
    found = {}
    for name, take in _tails(setting, (32, 256, 28, 28), torch.bfloat16,
                             'channels_last').items():
        for _ in range(3):
            take()
        torch.cuda.synchronize()
        with (profile(activities=[ProfilerActivity.CUDA]) as trace,
              fused_tails(int(name == 'fused'))):
            take()
            torch.cuda.synchronize()
        found[name] = sum(
            e.device_type == torch.autograd.DeviceType.CUDA
            for e in trace.events())
    return Outcome(listed(found, 'd'), f'fused ≤ {LAUNCHES}',
                   found['fused'] <= LAUNCHES)


def _cpu_time(setting: Setting) -> Outcome:
    """Of launching alone: the device is not waited for between tails."""
    contestants = _tails(setting, (4, 64, 4, 4), torch.float32, 'contiguous')
    times = {name: [] for name in contestants}
    with fused_tails(1):
        contestants['fused']()
    for k in range(3 if setting.quick else 40):
        for name, take in contestants.items():
            setting.synchronize()
            start = time.perf_counter()
            for _ in range(10):
                take()
            if k:  # the first compiles
                times[name].append((time.perf_counter() - start) / 10)
    share = ratios(times)['fused']
    medians = {name: statistics.median(t) * 1e6 for name, t in times.items()}
    return Outcome(f'{share:.2f} ({listed(medians, ".0f")} µs)',
                   f'≤ {CPU_TIME}', share <= CPU_TIME)


def _device_time(setting: Setting, shape: tuple[int, ...],
                 dtype: torch.dtype, memory_format: str) -> Outcome:
    contestants = _tails(setting, shape, dtype, memory_format)
    with fused_tails():
        found = ratios(seconds(setting, contestants, 30, device=True))
    return Outcome(listed(found, '.2f'), 'fused ≤ 1.00', found['fused'] <= 1)


def _bandwidth(setting: Setting, shape: tuple[int, ...], dtype: torch.dtype,
               memory_format: str) -> Outcome:
    """Of Triton's kernels one by one; of ATen's passes together."""
    modules = tail('StepNet', shape[1]).to(setting.device)
    x, c, grad = maps(setting, shape, dtype, memory_format)
    spec, _, _, *learned = dispatch.read_tail(modules['step'], x, c,
                                              modules['norm'])
    learned = Parameters(*(t.detach() for t in learned))
    passes, target = dispatch.passes_for(c), torch.empty_like(x)
    out, saved = passes.forward(spec, x, c, learned)
    runs = dict(
        copy=lambda: target.copy_(x),
        forward=lambda: passes.forward(spec, x, c, learned),
        backward=lambda: passes.backward(spec, grad, out, c, learned, saved))
    times = seconds(setting, runs, 30, device=True)
    if setting.on_cuda:
        del times['forward'], times['backward']
        times |= _kernel_times(passes.LAUNCH, runs, 3 if setting.quick else 30)
    size = x.numel() * x.element_size()
    rates = {name: MOVED[name] * size / statistics.median(t) / 1e12
             for name, t in times.items() if name in MOVED}
    copied = rates.pop('copy')
    worst = min(rates.values()) / copied
    return Outcome(f'{worst:.0%} of a copy\'s {copied:.2f} TB/s '
                   f'({listed(rates, ".2f")})', f'≥ {BANDWIDTH:.0%}',
                   worst >= BANDWIDTH)


def _kernel_times(launch: dict[str, Callable], runs: dict[str, Callable],
                  rounds: int) -> dict[str, list[float]]:
    """Seconds of each kernel, between device events on both its sides."""
    events = {name: [] for name in launch}

    def timed(name, original, *args):
        pair = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        pair[0].record()
        original(*args)
        pair[1].record()
        events[name].append(pair)
    with mock.patch.dict(launch, {name: partial(timed, name, original)
                                  for name, original in launch.items()}):
        for _ in range(rounds):
            torch.cuda._sleep(20_000_000)  # for the host to go ahead
            runs['forward']()
            runs['backward']()
            torch.cuda.synchronize()
    return {name: [start.elapsed_time(end) / 1e3 for start, end in pairs]
            for name, pairs in events.items()}
