"""The fused step on an NVIDIA GPU: ``pytest -m gpu``.

Values and gradients are compared with the reference path in float64, without
TF32. A test fails where the fused path is not taken.
"""

import copy
from functools import partial

import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.checkpoint import checkpoint

from mmstepnet import insert_steps, steps
from mmstepnet.attentions import FoldedStepNet, StepNet
from tests.test_steps import cases
from tests.test_steps.cases import FORMATS, build, errors, run
from tests.utils import perturb

torchvision = pytest.importorskip('torchvision')
CUDA = torch.cuda.is_available()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not CUDA, reason='needs an NVIDIA GPU'),
]
DEVICE = 'cuda' if CUDA else 'cpu'
SHAPES = (
    (8, 256, 56, 56),
    (8, 512, 28, 28),
    (8, 1024, 14, 14),
    (8, 2048, 7, 7),
    (4, 48, 80, 80),
    (5, 67, 33, 31),
    (4, 64, 1000, 1),
)
LIMITS = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
"""Relative error of outputs and gradients that is no defect, rounded inputs
given; nor is twice that of the reference path."""


@pytest.fixture(autouse=True)
def fused_and_exact(calls):
    owners = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [owner.allow_tf32 for owner in owners]
    for owner in owners:
        owner.allow_tf32 = False
    yield
    for owner, allowed in zip(owners, before):
        owner.allow_tf32 = allowed
    assert calls


def tail(channels):
    """A step and the norm before it, with random parameters."""
    return [m.to(DEVICE) for m in build(StepNet, channels)]


def maps(*args, **kwargs):
    return [t.to(DEVICE) for t in cases.inputs(*args, **kwargs)]


def check(modules, args, dtype=torch.float32, absolute=None, **how):
    """At most twice the reference path's error, or what is no defect."""
    args[2].copy_(cases.away_from_kink(*modules, *args, 0.1))
    found = run(True, *modules, *args, **how)
    args = [t.clone() for t in args]  # cuDNN's BN wants them aligned
    exact = run(False, *modules, *args, torch.float64)
    reference = run(False, *modules, *args)
    wanted = {k: v for k, v in exact.items() if v is not None}
    found, reference = (
        errors({k: values[k] for k in wanted}, wanted)
        for values in (found, reference)
    )
    limit = max(LIMITS[dtype], 2 * max(reference.values()))
    for name, value in found.items():
        assert value <= (
            limit if absolute is None else 2 * (reference[name] + absolute)
        ), name


@pytest.mark.parametrize('dtype', LIMITS)
@pytest.mark.parametrize('memory_format', FORMATS)
@pytest.mark.parametrize('shape', SHAPES)
def test_tails(dtype, memory_format, shape):
    check(tail(shape[1]), maps(shape, dtype, memory_format), dtype)


def frozen_norm(step, norm):
    frozen = torchvision.ops.FrozenBatchNorm2d(256).to(DEVICE)
    frozen.load_state_dict(norm.state_dict(), strict=False)
    return step, frozen


def folded(step, norm):
    step.attention = FoldedStepNet(step.eval().attention)
    return step, norm


@pytest.mark.parametrize(
    'change',
    [
        pytest.param(frozen_norm, id='frozen norm'),
        pytest.param(folded, id='folded'),
        pytest.param(lambda *pair: [m.eval() for m in pair], id='eval'),
        pytest.param(
            lambda step, norm: (step.requires_grad_(False), norm),
            id='frozen step',
        ),
    ],
)
def test_other_tails(change):
    check(change(*tail(256)), maps(SHAPES[0], torch.float32))


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
@pytest.mark.parametrize('memory_format', FORMATS)
def test_unaligned_maps(dtype, memory_format):
    args = [
        t.new_empty(t.numel() + 1)[1:]
        .as_strided(t.size(), t.stride(), 1)
        .copy_(t)
        for t in maps(SHAPES[1], dtype, memory_format)
    ]
    check(tail(512), args, dtype)


@pytest.mark.parametrize('mean', [10, 100, 1000])
@pytest.mark.parametrize('memory_format', FORMATS)
def test_large_means(mean, memory_format):
    """Below 1e-7 rounding decides."""
    args = maps((32, 64, 56, 56), torch.float32, memory_format)
    args[1] += mean * torch.empty_like(args[1][:1, :, :1, :1]).uniform_(
        0.8, 1.2
    )
    check(tail(64), args, absolute=1e-7)


@pytest.mark.parametrize('training', [True, False])
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
@pytest.mark.parametrize('memory_format', FORMATS)
def test_compiled(dtype, memory_format, training):
    """By Inductor, which writes kernels of its own; and eager."""
    torch._dynamo.reset()
    modules = [m.train(training) for m in tail(64)]
    for wrap in (torch.compile, lambda step: step):
        check(
            modules,
            maps((16, 64, 28, 28), dtype, memory_format),
            dtype,
            wrap=wrap,
        )


@pytest.mark.parametrize('memory_format', FORMATS)
def test_more_than_2_31_elements(memory_format):
    """The last of nine images is what the reference makes of it alone."""
    shape = (9, 64, 2048, 2048) if CUDA else (9, 4, 64, 64)
    modules = [m.eval() for m in tail(shape[1])]
    args = [
        torch.randn(shape, device=DEVICE, dtype=torch.bfloat16).contiguous(
            memory_format=memory_format
        )
        for _ in range(3)
    ]
    exact = run(False, *modules, *(t[-1:] for t in args), torch.float64)
    found = run(True, *modules, *args)
    assert (
        max(
            errors(
                *(
                    {k: values[k][-1:] for k in ('out', 'x', 'c')}
                    for values in (found, exact)
                )
            ).values()
        )
        <= 2e-2
    )


@pytest.mark.parametrize('which', [0, 1])
def test_nan_stays_where_it_is(which):
    modules, args = tail(16), maps((4, 16, 9, 7), torch.float32)
    args[which][1, 2, 3, 4] = torch.nan
    found = run(True, *modules, *args)
    reference = run(False, *modules, *args)
    assert reference['out'].isnan().any()
    for name, wanted in reference.items():
        assert torch.equal(found[name].isnan(), wanted.isnan()), name


def test_another_stream_and_a_captured_graph():
    first, second = (maps((8, 64, 28, 28), torch.float32) for _ in range(2))
    late, stream = [torch.zeros_like(t) for t in first], torch.cuda.Stream()
    step, norm = tail(64)
    wanted_of = [*step.parameters(), *norm.parameters()]

    def take(x, c, grad):
        x, c = x.detach().requires_grad_(), c.detach().requires_grad_()
        out = step(x, c, norm)
        return [
            out.detach(),
            *torch.autograd.grad(out, (x, c, *wanted_of), grad),
        ]

    wanted = take(*second)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)  # maps are written late
        for t, value in zip(late, second):
            t.copy_(value)
        found = take(*late)
        take(*first)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = take(*first)
    for t, value in zip(first, second):
        t.copy_(value)
    graph.replay()
    torch.cuda.synchronize()
    assert all(map(torch.equal, found, wanted))
    assert all(map(torch.equal, captured[:3], wanted[:3]))


def resnet(memory_format=FORMATS[0]):
    """Torchvision's ResNet-50, with the paper's gate in its blocks."""
    model = torchvision.models.resnet50()
    insert_steps(model, 'StepNet', init_step=None)
    images = torch.randn(*(16, 3, 128, 128) if CUDA else (2, 3, 64, 64))
    return (
        perturb(model).to(DEVICE, memory_format=memory_format),
        images.to(DEVICE, memory_format=memory_format),
    )


def gradients(model, x, autocast=None):
    """Gradients of all parameters, one vector in float64."""
    scale = 2.0**12 if autocast == torch.float16 else 1
    model.zero_grad()
    with torch.autocast(DEVICE, autocast, enabled=autocast is not None):
        loss = model(x).double().square().mean()
    (loss * scale).backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    return (
        torch.cat(
            [
                getattr(g, 'full_tensor', lambda g=g: g)().double().flatten()
                for g in grads
            ]
        )
        / scale
    )


def check_network(model, x, wrap=lambda model: model, autocast=None):
    """At most twice the reference's error, and what one ReLU is worth."""
    with steps.fused(False):
        reference = gradients(model, x, autocast)
        exact = gradients(copy.deepcopy(model).double(), x.double())
    found = gradients(wrap(model), x, autocast)
    found, reference = (
        float((got - exact).norm() / exact.norm())
        for got in (found, reference)
    )
    assert found <= 2 * reference + 3e-2


@pytest.mark.parametrize('autocast', [None, torch.bfloat16, torch.float16])
@pytest.mark.parametrize('memory_format', FORMATS)
def test_gradients_of_a_network(autocast, memory_format):
    check_network(*resnet(memory_format), autocast=autocast)


def checkpointed(model, reentrant):
    for name in ('layer1', 'layer2', 'layer3', 'layer4'):
        layer = getattr(model, name)
        layer.forward = partial(
            checkpoint, layer.forward, use_reentrant=reentrant
        )
    return model


def sharded(model):
    from torch.distributed.fsdp import fully_shard

    return fully_shard(
        model, mesh=dist.device_mesh.init_device_mesh(DEVICE, (1,))
    )


@pytest.mark.parametrize(
    'wrap',
    [
        pytest.param(
            partial(checkpointed, reentrant=False), id='checkpointed'
        ),
        pytest.param(
            partial(checkpointed, reentrant=True), id='checkpointed, reentrant'
        ),
        pytest.param(nn.parallel.DistributedDataParallel, id='DDP'),
        pytest.param(sharded, id='sharded'),
    ],
)
def test_wrapped(wrap, tmp_path):
    dist.init_process_group(
        'nccl' if CUDA else 'gloo',
        rank=0,
        world_size=1,
        init_method=f'file://{tmp_path}/store',
    )
    try:
        check_network(*resnet(), wrap)
    finally:
        dist.destroy_process_group()


def test_the_same_twice_and_no_wait_for_the_device(monkeypatch):
    monkeypatch.setenv('CUBLAS_WORKSPACE_CONFIG', ':4096:8')
    model, x = resnet()
    torch.use_deterministic_algorithms(True)
    try:
        first, second = (gradients(model, x) for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(first, second)
    torch.cuda.set_sync_debug_mode('error')
    try:
        model(x).square().mean().backward()
    finally:
        torch.cuda.set_sync_debug_mode('default')
