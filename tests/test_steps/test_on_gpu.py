"""The fused step on an NVIDIA GPU: ``pytest -m gpu``.

Values and gradients are compared with the reference path in float64, without
TF32. A test fails where the fused path is not taken.
"""

import copy
import socket
from contextlib import contextmanager
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.checkpoint import checkpoint

from mmstepnet import insert_steps, steps
from mmstepnet.attentions import FoldedStepNet, StepNet
from mmstepnet.steps import ResidualStep
from mmstepnet.steps.tail.function import Tail
from tests.test_steps.cases import FORMATS
from tests.utils import perturb

torchvision = pytest.importorskip('torchvision')
CUDA = torch.cuda.is_available()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(
    not CUDA, reason='needs an NVIDIA GPU')]
DEVICE = 'cuda' if CUDA else 'cpu'
SHAPES = ((8, 256, 56, 56), (8, 512, 28, 28), (8, 1024, 14, 14),
          (8, 2048, 7, 7), (4, 48, 80, 80), (5, 67, 33, 31), (4, 64, 1000, 1))
LIMITS = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
"""Relative error of outputs and gradients that is no defect, rounded inputs
given; nor is twice that of the reference path."""


@pytest.fixture(autouse=True)
def exact_values():
    torch.manual_seed(0)
    owners = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [owner.allow_tf32 for owner in owners]
    for owner in owners:
        owner.allow_tf32 = False
    yield
    for owner, allowed in zip(owners, before):
        owner.allow_tf32 = allowed


@contextmanager
def fused(expected=None):
    """Switch the fused path on, and see that so many tails take it."""
    taken, apply = [], Tail.apply
    with steps.fused(True), mock.patch.object(
            Tail, 'apply', lambda *args: taken.append(1) or apply(*args)):
        yield
    assert taken and expected in (None, len(taken))


def tail(channels, attention=None):
    """A step and the norm before it, with random parameters."""
    return perturb(nn.ModuleDict(dict(
        step=ResidualStep(attention or StepNet(channels), nn.ReLU()),
        norm=nn.BatchNorm2d(channels)))).to(DEVICE)


def maps(shape, dtype=torch.float32, memory_format=FORMATS[0]):
    """State, branch and gradient; images and channels differ in means."""
    return [(torch.randn(shape, device=DEVICE)
             + torch.randn(*shape[:2], 1, 1, device=DEVICE)).to(
                 dtype).contiguous(memory_format=memory_format)
            for _ in range(3)]


def take(modules, inputs):
    """Output and gradients of one pass."""
    x, c, grad = (t.detach() for t in inputs)
    wanted = dict(x=x.requires_grad_(), c=c.requires_grad_(), **{
        name: p for name, p in modules.named_parameters() if p.requires_grad})
    out = modules['step'](x, c, modules['norm'])
    grads = torch.autograd.grad(out, list(wanted.values()), grad)
    return dict(out=out.detach(), **dict(zip(wanted, grads)))


def taken(modules, inputs, dtype):
    """Output, gradients and statistics of one pass of a copy."""
    modules = copy.deepcopy(modules).to(
        dtype if dtype == torch.float64 else None)
    found = take(modules, [t.to(dtype) for t in inputs])
    return found | {name: b for name, b in modules.named_buffers()
                    if b.is_floating_point()}


def errors(modules, inputs, dtype):
    """Relative errors of the fused path, and of the reference path."""
    total = copy.deepcopy(modules).double()
    total['step'].activation = nn.Identity()
    with torch.no_grad(), steps.fused(False):
        total = total['step'](*(t.double() for t in inputs[:2]),
                              total['norm'])
    # No gradient where rounding decides on which side of 0 we are.
    inputs[2] *= (total.abs() > 0.1 * total.abs().mean()).to(inputs[2])
    with fused(1):
        found = taken(modules, inputs, dtype)
    inputs = [t.clone() for t in inputs]  # cuDNN's BN wants them aligned
    with steps.fused(False):
        reference = taken(modules, inputs, dtype)
        exact = taken(modules, inputs, torch.float64)
    return [{name: error(got[name], t) for name, t in exact.items()}
            for got in (found, reference)]


def error(found, exact):
    found, exact = found.double(), exact.double()
    return float((found - exact).norm() / exact.norm())


def check(modules, inputs, dtype=torch.float32):
    found, reference = errors(modules, inputs, dtype)
    limit = max(LIMITS[dtype], 2 * max(reference.values()))
    assert max(found.values()) <= limit, (found, reference)


@pytest.mark.parametrize('dtype', LIMITS)
@pytest.mark.parametrize('memory_format', FORMATS)
@pytest.mark.parametrize('shape', SHAPES)
def test_tails(dtype, memory_format, shape):
    check(tail(shape[1]), maps(shape, dtype, memory_format), dtype)


def frozen_norm(modules):
    norm = torchvision.ops.FrozenBatchNorm2d(256).to(DEVICE)
    norm.load_state_dict(modules['norm'].state_dict(), strict=False)
    modules['norm'] = norm


def folded(modules):
    modules['step'].attention = FoldedStepNet(
        modules.eval()['step'].attention)


@pytest.mark.parametrize('change', [
    frozen_norm, folded, nn.Module.eval,
    lambda modules: modules['step'].attention.requires_grad_(False)])
def test_other_tails(change):
    modules = tail(256)
    change(modules)
    check(modules, maps(SHAPES[0]))


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
@pytest.mark.parametrize('memory_format', FORMATS)
def test_unaligned_maps(dtype, memory_format):
    inputs = [t.new_empty(t.numel() + 1)[1:].as_strided(
        t.size(), t.stride(), 1).copy_(t)
        for t in maps(SHAPES[1], dtype, memory_format)]
    check(tail(512), inputs, dtype)


@pytest.mark.parametrize('mean', [10, 100, 1000])
@pytest.mark.parametrize('memory_format', FORMATS)
def test_large_means(mean, memory_format):
    """At most twice the reference's error; below 1e-7 rounding decides."""
    inputs = maps((32, 64, 56, 56), memory_format=memory_format)
    inputs[1] += mean * torch.empty_like(
        inputs[1][:1, :, :1, :1]).uniform_(0.8, 1.2)
    found, reference = errors(tail(64), inputs, torch.float32)
    for name, value in found.items():
        assert value <= 2 * (reference[name] + 1e-7), name


@pytest.mark.parametrize('memory_format', FORMATS)
def test_more_than_2_31_elements(memory_format):
    """The last of nine images is what the reference makes of it alone."""
    shape = (9, 64, 2048, 2048) if CUDA else (9, 4, 64, 64)
    modules = tail(shape[1]).eval()
    inputs = maps(shape, torch.bfloat16, memory_format)
    with steps.fused(False):
        exact = taken(modules, [t[-1:] for t in inputs], torch.float64)
    with fused(1):
        found = take(modules, inputs)
    for name in ('out', 'x', 'c'):
        assert error(found[name][-1:], exact[name]) <= 2e-2


@pytest.mark.parametrize('which', [0, 1])
def test_nan_stays_where_it_is(which):
    modules, inputs = tail(16), maps((4, 16, 9, 7))
    inputs[which][1, 2, 3, 4] = torch.nan
    with fused(1):
        found = taken(modules, inputs, torch.float32)
    with steps.fused(False):
        reference = taken(modules, inputs, torch.float32)
    assert reference['out'].isnan().any()
    for name, wanted in reference.items():
        assert torch.equal(found[name].isnan(), wanted.isnan()), name


def test_another_stream_and_a_captured_graph():
    modules = tail(64)
    first, second = (maps((8, 64, 28, 28)) for _ in range(2))
    late, stream = [torch.zeros_like(t) for t in first], torch.cuda.Stream()
    with fused():
        wanted = take(modules, second)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(100_000_000)  # maps are written late
            for t, value in zip(late, second):
                t.copy_(value)
            found = take(modules, late)
            take(modules, first)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = take(modules, first)
    for t, value in zip(first, second):
        t.copy_(value)
    graph.replay()
    torch.cuda.synchronize()
    for name, t in wanted.items():
        assert torch.equal(found[name], t), name
        if name in ('out', 'x', 'c'):
            assert torch.equal(captured[name], t), name


def resnet(memory_format=FORMATS[0]):
    """Torchvision's ResNet-50, with the paper's gate in its blocks."""
    model = torchvision.models.resnet50()
    insert_steps(model, 'StepNet', init_step=None)
    images = torch.randn(*(16, 3, 128, 128) if CUDA else (2, 3, 64, 64))
    return (perturb(model).to(DEVICE, memory_format=memory_format),
            images.to(DEVICE, memory_format=memory_format))


def gradients(model, x, autocast=None):
    """Gradients of all parameters, one vector in float64."""
    scale = 2.0**12 if autocast == torch.float16 else 1
    model.zero_grad()
    with torch.autocast(DEVICE, autocast, enabled=autocast is not None):
        loss = model(x).double().square().mean()
    (loss * scale).backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    return torch.cat([getattr(g, 'full_tensor', lambda g=g: g)().double()
                      .flatten() for g in grads]) / scale


def check_network(model, x, wrap=lambda model: model, autocast=None):
    """At most twice the reference's error, and what one ReLU is worth."""
    with steps.fused(False):
        reference = gradients(model, x, autocast)
        exact = gradients(copy.deepcopy(model).double(), x.double())
    model = wrap(model)
    with fused():
        found = gradients(model, x, autocast)
    assert error(found, exact) <= 2 * error(reference, exact) + 3e-2


@pytest.mark.parametrize('autocast', [None, torch.bfloat16, torch.float16])
@pytest.mark.parametrize('memory_format', FORMATS)
def test_gradients_of_a_network(autocast, memory_format):
    check_network(*resnet(memory_format), autocast=autocast)


@pytest.mark.parametrize('reentrant', [False, True])
def test_checkpoints_of_activations(reentrant):
    class Kept(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return checkpoint(self.inner, x, use_reentrant=reentrant)

    def wrap(model):
        for name in ('layer1', 'layer2', 'layer3', 'layer4'):
            setattr(model, name, Kept(getattr(model, name)))
        return model
    check_network(*resnet(), wrap)


@pytest.mark.parametrize('kind', ['DDP', 'FSDP2'])
def test_wrapped_for_several_processes(kind):
    with socket.socket() as server:
        server.bind(('127.0.0.1', 0))
        port = server.getsockname()[1]
    dist.init_process_group(
        'nccl' if CUDA else 'gloo', rank=0, world_size=1,
        init_method=f'tcp://127.0.0.1:{port}')
    try:
        if kind == 'DDP':
            check_network(*resnet(), nn.parallel.DistributedDataParallel)
        else:
            from torch.distributed.fsdp import fully_shard
            check_network(*resnet(), lambda model: fully_shard(
                model, mesh=dist.device_mesh.init_device_mesh(DEVICE, (1, ))))
    finally:
        dist.destroy_process_group()


def test_a_step_that_overflows_changes_nothing():
    model, x = resnet()
    half = torch.float16 if CUDA else torch.bfloat16
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=float('inf'))
    moved = []
    for _ in range(2):
        before = nn.utils.parameters_to_vector(model.parameters()).clone()
        optimizer.zero_grad()
        with fused(), torch.autocast(DEVICE, half):
            loss = model(x).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update(2.0**12)
        after = nn.utils.parameters_to_vector(model.parameters())
        moved.append(not torch.equal(before, after))
    assert moved == [False, True] and after.isfinite().all()


def test_the_same_twice_and_no_wait_for_the_device(monkeypatch):
    monkeypatch.setenv('CUBLAS_WORKSPACE_CONFIG', ':4096:8')
    model, x = resnet()
    torch.use_deterministic_algorithms(True)
    try:
        with fused():
            first, second = (gradients(model, x) for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(first, second)
    with fused():
        torch.cuda.set_sync_debug_mode('error')
        try:
            model(x).square().mean().backward()
        finally:
            torch.cuda.set_sync_debug_mode('default')
