"""Values, gradients and modes of the fused step."""

import copy
import os
import socket
from collections.abc import Iterator
from functools import partial

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from mmstepnet import steps
from mmstepnet.steps.vectors import join

from .common import (
    FORMATS,
    GATES,
    STAGES,
    Check,
    Outcome,
    Setting,
    error,
    flat_gradients,
    fused_tails,
    maps,
    network_gradients,
    resnet,
    tail,
)

ODD = ((4, 48, 80, 80), (5, 67, 33, 31), (4, 64, 1000, 1))
LIMITS = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 2e-2,
          torch.float16: 3e-3}
"""Relative error of outputs and gradients that is no defect, rounded inputs
given; nor is twice that of the reference path."""


def checks(setting: Setting) -> Iterator[Check]:
    """Checks of this part."""
    if setting.device == 'cuda':
        yield 'kernels in use', _kernels
    shapes = ((8, 16, 6, 5), ) if setting.quick else (
        *((8, c, side, side) for c, side in STAGES), *ODD)
    for dtype in LIMITS:
        for name in FORMATS:
            for shape in shapes:
                yield (f'tail, StepNet, {_short(dtype)}, {name}, {shape}',
                       partial(_tail, setting, 'StepNet', shape, dtype, name))
    for gate in GATES[1:]:
        for name in FORMATS:
            yield (f'tail, {gate}, float32, {name}', partial(
                _tail, setting, gate, shapes[0], torch.float32, name))
    yield 'tail, frozen norm', partial(_frozen, setting, shapes[0])
    yield 'large means', partial(_large_means, setting)
    for dtype in (torch.float64, None, torch.bfloat16, torch.float16):
        if dtype != torch.float16 or setting.device == 'cuda':
            for name in FORMATS:
                yield (f'ResNet-50, gradients, {_short(dtype)}, {name}',
                       partial(_network, setting, dtype, name))
    yield 'ResNet-50, checkpointed', partial(_checkpointed, setting)
    yield 'ResNet-50, deterministic', partial(_deterministic, setting)
    if setting.device == 'cuda':
        yield 'ResNet-50, no wait for the device', partial(_no_sync, setting)
        yield 'ResNet-50, CUDA graph', partial(_cuda_graph, setting)
    for world in sorted({1, max(torch.cuda.device_count(), 1)}):
        yield f'DDP, {world} processes', partial(_ddp, setting, world)


def _short(dtype: torch.dtype | None) -> str:
    return 'float32' if dtype is None else str(dtype).removeprefix('torch.')


def _kernels() -> Outcome:
    used = steps.kernels.backend(torch.empty(1, device='cuda')).__name__
    return Outcome(used.rpartition('.')[2], 'triton_kernels',
                   used.endswith('triton_kernels'))


def _pass(modules: nn.ModuleDict, inputs: list[Tensor], fused: bool,
          dtype: torch.dtype) -> list[Tensor]:
    """Output, gradients and buffers of one pass of a copy."""
    modules = copy.deepcopy(modules)
    if dtype == torch.float64:
        modules.double()
    x, c, grad = (t.detach().to(dtype) for t in inputs)
    x, c = x.requires_grad_(), c.requires_grad_()
    with steps.fused(fused):
        out = modules['step'](x, c, modules['norm'])
    out.backward(grad)
    return [out.detach(), x.grad, c.grad,
            *(p.grad for p in modules.parameters()),
            *(b for b in modules.buffers() if b.is_floating_point())]


def _away_from_kink(modules: nn.ModuleDict, inputs: list[Tensor]) -> None:
    """No gradient where rounding decides on which side of 0 we are."""
    modules = copy.deepcopy(modules).double()
    modules['step'].activation = nn.Identity()
    x, c, grad = inputs
    with torch.no_grad(), steps.fused(False):
        total = modules['step'](x.double(), c.double(), modules['norm'])
    grad *= (total.abs() > 0.1 * total.abs().mean()).to(grad)


def _tail(setting: Setting, gate: str, shape: tuple[int, ...],
          dtype: torch.dtype, memory_format: str,
          norm: type[nn.Module] = nn.BatchNorm2d) -> Outcome:
    torch.manual_seed(0)
    modules = tail(gate, shape[1], norm).to(setting.device)
    inputs = maps(setting, shape, dtype, FORMATS[memory_format])
    _away_from_kink(modules, inputs)
    with fused_tails(1):
        found = _pass(modules, inputs, True, dtype)
    reference = _pass(modules, inputs, False, dtype)
    exact = _pass(modules, inputs, False, torch.float64)
    fused, reference = (max(error(a, b) for a, b in zip(got, exact))
                        for got in (found, reference))
    limit = LIMITS[dtype]
    return Outcome(f'{fused:.1e}, reference {reference:.1e}',
                   f'≤ {limit:.0e} or twice the reference',
                   fused <= max(limit, 2 * reference))


def _frozen(setting: Setting, shape: tuple[int, ...]) -> Outcome:
    from torchvision.ops import FrozenBatchNorm2d
    return _tail(setting, 'StepNet', shape, torch.float32, 'contiguous',
                 FrozenBatchNorm2d)


def _below(value: float, limit: float) -> Outcome:
    return Outcome(f'{value:.1e}', f'≤ {limit:.0e}', value <= limit)


def _large_means(setting: Setting) -> Outcome:
    """Variances of channels whose mean is ten thousand deviations."""
    side = 16 if setting.quick else 112
    c = torch.randn(4, 8, side, side, device=setting.device,
                    dtype=torch.float64) + 1e4
    worst = 0.0
    for memory_format in FORMATS.values():
        maps = c.float().contiguous(memory_format=memory_format)
        passes = steps.kernels.backend(maps) or steps.kernels.plain
        *_, var = join((None, *passes.moments(maps)), *passes.spans(maps))
        worst = max(worst, error(var, maps.double().var((2, 3),
                                                        correction=0)))
    return _below(worst, 1e-3)


def _images(setting: Setting) -> Tensor:
    torch.manual_seed(0)
    shape = (2, 3, 64, 64) if setting.quick else (16, 3, 128, 128)
    return torch.randn(shape, device=setting.device)


def _network(setting: Setting, dtype: torch.dtype | None,
             memory_format: str) -> Outcome:
    model = resnet().to(setting.device, memory_format=FORMATS[memory_format])
    x = _images(setting).contiguous(memory_format=FORMATS[memory_format])
    exact = network_gradients(copy.deepcopy(model).double(), x.double(),
                              False)
    if dtype == torch.float64:
        model, x, dtype = model.double(), x.double(), None
        with fused_tails():
            return _below(error(network_gradients(model, x, True), exact),
                          1e-8)
    scaled = dtype == torch.float16
    with fused_tails():
        fused = network_gradients(model, x, True, dtype, scaled)
    reference = network_gradients(model, x, False, dtype, scaled)
    fused, reference = error(fused, exact), error(reference, exact)
    return Outcome(f'{fused:.1e}, reference {reference:.1e}',
                   'at most twice the error of the reference',
                   fused <= 2 * reference + 1e-6)


class _Checkpointed(nn.Module):
    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inner, x, use_reentrant=False)


def _checkpointed(setting: Setting) -> Outcome:
    model, x = resnet().to(setting.device).double(), _images(setting).double()
    exact = network_gradients(model, x, False)
    for name in ('layer1', 'layer2', 'layer3', 'layer4'):
        setattr(model, name, _Checkpointed(getattr(model, name)))
    with fused_tails():
        found = network_gradients(model, x, True)
    return _below(error(found, exact), 1e-8)


def _deterministic(setting: Setting) -> Outcome:
    model, x = resnet().to(setting.device), _images(setting)
    os.environ.setdefault('CUBLAS_WORKSPACE_CONFIG', ':4096:8')
    torch.use_deterministic_algorithms(True)
    try:
        with fused_tails():
            first, second = (network_gradients(model, x, True)
                             for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    equal = torch.equal(first, second)
    return Outcome('equal' if equal else 'differs', 'equal', equal)


def _no_sync(setting: Setting) -> Outcome:
    model, x = resnet().to(setting.device), _images(setting)
    model(x).square().mean().backward()  # compiles, which waits
    torch.cuda.set_sync_debug_mode('error')
    try:
        with fused_tails():
            model(x).square().mean().backward()
    finally:
        torch.cuda.set_sync_debug_mode('default')
    return Outcome('no wait', 'no wait', True)


def _cuda_graph(setting: Setting) -> Outcome:
    model, x = resnet().to(setting.device), _images(setting)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            model.zero_grad()
            model(x).square().mean().backward()
    torch.cuda.current_stream().wait_stream(stream)
    model.zero_grad()
    graph = torch.cuda.CUDAGraph()
    with fused_tails(), torch.cuda.graph(graph):
        model(x).square().mean().backward()
    graph.replay()
    torch.cuda.synchronize()
    return _below(error(flat_gradients(model),
                        network_gradients(model, x, True)), 1e-2)


def _ddp(setting: Setting, world: int) -> Outcome:
    """Each process compares DDP's mean with the reference path's."""
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        port = s.getsockname()[1]
    mp.spawn(_ddp_process, (world, setting.device, port, setting.quick),
             world)
    return Outcome('equal to 1e-4', 'equal to 1e-4', True)


def _ddp_process(rank: int, world: int, device: str, port: int,
                 quick: bool) -> None:
    if device == 'cuda':
        torch.cuda.set_device(rank)
    else:
        steps.choice.SMALLEST = 0  # small maps are not fused otherwise
    dist.init_process_group(
        'nccl' if device == 'cuda' else 'gloo', rank=rank, world_size=world,
        init_method=f'tcp://127.0.0.1:{port}')
    model = resnet().to(device).double()
    torch.manual_seed(rank)
    x = torch.randn(2 if quick else 8, 3, 64, 64).to(device).double()
    exact = network_gradients(model, x, False)
    dist.all_reduce(exact)
    for options in ({}, dict(find_unused_parameters=True),
                    dict(static_graph=True)):
        wrapped = DistributedDataParallel(copy.deepcopy(model), **options)
        with fused_tails():
            wrapped(x).square().mean().backward()
        found = error(flat_gradients(wrapped), exact / world)
        if not found < 1e-4:
            raise AssertionError(f'DDP with {options}: error {found:.1e}')
    dist.destroy_process_group()
