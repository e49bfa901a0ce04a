"""The fused step where PyTorch does more than run it: a ResNet-50's."""

import copy
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from mmstepnet import steps

from .common import (
    Check,
    Outcome,
    Setting,
    error,
    exact_values,
    fused_tails,
    network_gradients,
    resnet,
)
from .correctness import TWICE, compare_network, images, twice

STAGES = 'layer1', 'layer2', 'layer3', 'layer4'
SIZES = tuple((256 + 32 * (k % 8), 256 + 32 * (7 * k % 11))
              for k in range(40))
"""Of images; the first ten have maps of all kinds that kernels know."""


def checks(setting: Setting) -> Iterator[Check]:
    """Checks of this part."""
    for world in sorted({1, max(torch.cuda.device_count(), 1)}):
        for kind in 'DDP', 'FSDP2':
            yield f'{kind}, {world} processes', partial(
                _in_processes, setting, kind, world)
    yield 'GradScaler, a step that overflows', partial(_scaled, setting)
    for reentrant in (False, True):
        yield ('checkpointing' + ', reentrant' * reentrant,
               partial(_checkpointed, setting, reentrant))
    yield 'deterministic', partial(_deterministic, setting)
    if setting.on_cuda:
        yield 'no wait for the device', partial(_no_sync, setting)
    yield 'first step and forty image sizes', partial(_sizes, setting)


def _in_processes(setting: Setting, kind: str, world: int) -> Outcome:
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        port = s.getsockname()[1]
    mp.spawn(_process, (world, setting, port, kind), world)
    return Outcome('holds', TWICE, True)


def _process(rank: int, world: int, setting: Setting, port: int,
             kind: str) -> None:
    """Each process compares means over all with the reference path's."""
    if setting.on_cuda:
        torch.cuda.set_device(rank)
    dist.init_process_group(
        'nccl' if setting.on_cuda else 'gloo', rank=rank, world_size=world,
        init_method=f'tcp://127.0.0.1:{port}')
    model = resnet().to(setting.device)
    torch.manual_seed(rank)
    x = torch.randn(2 if setting.quick else 8, 3, 64, 64).to(setting.device)
    with exact_values():
        with steps.fused(False):
            exact = network_gradients(copy.deepcopy(model).double(),
                                      x.double())
            reference = network_gradients(model, x)
        for t in (exact, reference):
            dist.all_reduce(t)
        for wrapped in _wrapped(setting, model, world, kind):
            with fused_tails():
                found = network_gradients(wrapped, x)
            outcome = twice(error(found, exact / world),
                            error(reference, exact))
            if not outcome.passed:
                raise AssertionError(outcome.value)
    dist.destroy_process_group()


def _wrapped(setting: Setting, model: nn.Module, world: int,
             kind: str) -> Iterator[nn.Module]:
    if kind == 'DDP':
        for options in ({}, dict(find_unused_parameters=True),
                        dict(static_graph=True)):
            yield DistributedDataParallel(copy.deepcopy(model), **options)
        return
    from torch.distributed.fsdp import fully_shard
    mesh = dist.device_mesh.init_device_mesh(setting.device, (world, ))
    for part in (*map(model.get_submodule, STAGES), model):
        fully_shard(part, mesh=mesh)
    yield model


def _scaled(setting: Setting) -> Outcome:
    """A step that overflows changes no parameter, the next one does."""
    half = torch.float16 if setting.on_cuda else torch.bfloat16
    model, x = resnet().to(setting.device), images(setting)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scaler = torch.amp.GradScaler(setting.device, init_scale=float('inf'))
    moved = []
    for _ in range(2):
        before = nn.utils.parameters_to_vector(model.parameters()).clone()
        optimizer.zero_grad()
        with fused_tails(), torch.autocast(setting.device, half):
            loss = model(x).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update(2.0**12)
        after = nn.utils.parameters_to_vector(model.parameters())
        moved.append(not torch.equal(before, after))
    finite = bool(after.isfinite().all())
    return Outcome(f'moves {moved}, finite {finite}',
                   'moves [False, True], finite True',
                   moved == [False, True] and finite)


class _Checkpointed(nn.Module):
    def __init__(self, inner: nn.Module, reentrant: bool):
        super().__init__()
        self.inner, self.reentrant = inner, reentrant

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inner, x, use_reentrant=self.reentrant)


def _checkpointed(setting: Setting, reentrant: bool) -> Outcome:
    """Gradients are right, and gates update their statistics once a step."""
    gates = []

    def wrap(model):
        for name in STAGES:
            stage = getattr(model, name)
            gates.extend(m for key, m in stage.named_modules()
                         if key.endswith('attention.bn'))
            setattr(model, name, _Checkpointed(stage, reentrant))
        for gate in gates:
            gate.reset_running_stats()
    outcome = compare_network(setting, change=wrap)
    counts = {int(gate.num_batches_tracked) for gate in gates}
    if counts != {1}:
        raise AssertionError(f'gates counted {counts} batches in one step')
    return outcome


def _deterministic(setting: Setting) -> Outcome:
    model, x = resnet().to(setting.device), images(setting)
    os.environ.setdefault('CUBLAS_WORKSPACE_CONFIG', ':4096:8')
    torch.use_deterministic_algorithms(True)
    try:
        with fused_tails():
            first, second = (network_gradients(model, x) for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    equal = torch.equal(first, second)
    return Outcome('equal' if equal else 'differs', 'equal', equal)


def _no_sync(setting: Setting) -> Outcome:
    model, x = resnet().to(setting.device), images(setting)
    with fused_tails():
        network_gradients(model, x)  # compiles, which waits
        torch.cuda.set_sync_debug_mode('error')
        try:
            model(x).square().mean().backward()
        finally:
            torch.cuda.set_sync_debug_mode('default')
    return Outcome('no wait', 'no wait', True)


def _sizes(setting: Setting) -> Outcome:
    """In processes of their own, so that nothing is compiled before."""
    with tempfile.TemporaryDirectory() as cache:
        found = {
            name: _in_child(setting, attention, cache)
            for name, attention in (
                ('plain', None), ('StepNet', 'StepNet'),
                ('StepNet, kernels kept', 'StepNet'))}
    texts = [
        f'{name}: first step {first:.1f} s, forty sizes {few + rest:.1f} s, '
        f'again {again:.1f} s'
        for name, ((first, few, rest, again), _) in found.items()]
    kernels = found['StepNet'][1]
    late = kernels[2] - kernels[1]
    return Outcome(f'{"; ".join(texts)}; kernels compiled: {kernels[0]} in '
                   f'the first step, {kernels[1] - kernels[0]} in nine '
                   f'sizes, {late} in thirty more',
                   'none in the last thirty sizes', late == 0)


def _in_child(setting: Setting, attention: str | None,
              cache: str) -> tuple[list[float], list[int]]:
    done = subprocess.run(
        [sys.executable, '-c', f'from {__name__} import first_steps; '
         f'first_steps({attention!r}, {setting.device!r}, {setting.quick})'],
        capture_output=True, text=True, cwd=Path(__file__).parents[2],
        env=dict(os.environ, TRITON_CACHE_DIR=cache,
                 PYTHONPATH=os.pathsep.join(sys.path)))
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.rpartition('RESULT')[2])


def first_steps(attention: str | None, device: str, quick: bool) -> None:
    """Print seconds of a first step and of forty sizes, and the kernels."""
    setting, sizes = Setting(device, quick), SIZES
    if quick:
        sizes = [(h // 8, w // 8) for h, w in SIZES[:12]]
    cache = Path(os.environ['TRITON_CACHE_DIR'])
    model, times, kernels = resnet(attention).to(device), [], []
    with fused_tails() if attention else nullcontext():
        for some in (sizes[:1], sizes[1:10], sizes[10:], sizes):
            setting.synchronize()
            start = time.perf_counter()
            for size in some:
                x = torch.randn(2, 3, *size, device=device)
                model(x).square().mean().backward()
            setting.synchronize()
            times.append(time.perf_counter() - start)
            kernels.append(len(list(cache.rglob('*.cubin'))))
    print('RESULT', json.dumps((times, kernels)))
