"""Whatever stands around a model: wrappers, patches, modes, precision."""

import copy
import functools

import pytest
import torch
import torch.distributed.fsdp
import torch.nn as nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    checkpoint_wrapper,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from mmstepnet.stiffness import TrajectoryRecorder
from tests.utils import perturb

X = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(3))


@pytest.fixture(autouse=True)
def without_fast_path():
    """Hooks alone switch it off, in whatever holds an attention."""
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(True)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.attn = nn.MultiheadAttention(8, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(),
                                 nn.Dropout(0.2), nn.Linear(16, 8))

    def forward(self, x):
        y = self.norm(x)
        x = x + self.attn(y, y, y, need_weights=False)[0]
        return x + self.mlp(x)


class Net(nn.Module):
    def __init__(self, block=Block):
        super().__init__()
        self.blocks = nn.ModuleList([block() for _ in range(3)])
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def net(block=Block):
    torch.manual_seed(0)
    return perturb(Net(block)).eval()


NAMES = [f'blocks.{k}.{s}' for k in (1, 2) for s in ('attn_step', 'mlp_step')]


@functools.cache
def plain():
    model = net()
    with TrajectoryRecorder(model) as recorder, torch.no_grad():
        model(X)
    assert recorder.blocks == NAMES and recorder.excluded == ['blocks.0']
    return recorder


def assert_equal(recorder):
    """To the rounding of the kernels that are taken with gradients."""
    torch.testing.assert_close(
        recorder.nsi, plain().nsi, rtol=1e-6, atol=0)


def recorded(model, *inputs):
    """The output, the same as without a recorder, and the recorder."""
    torch.manual_seed(1)
    wanted = model(*inputs)
    torch.manual_seed(1)
    with TrajectoryRecorder(model) as recorder:
        out = model(*inputs)
    assert torch.equal(out, wanted)
    return out, recorder


@pytest.mark.parametrize('training', [False, True])
@pytest.mark.parametrize('context', [
    torch.enable_grad, torch.no_grad,
    lambda: torch.autocast('cpu', torch.bfloat16)])
def test_outputs_and_gradients_are_the_same_to_the_bit(training, context):
    gradients = []
    for record in (False, True):
        model = net().train(training)
        torch.manual_seed(1)
        recorder = TrajectoryRecorder(model)
        if record:
            recorder.start()
        with context():
            out = model(X)
        recorder.stop()
        grads = [out]
        if out.requires_grad:
            out.square().sum().backward()
            grads += [p.grad for p in model.parameters()]
        gradients.append(grads)
    assert all(map(torch.equal, *gradients))
    assert recorder.blocks == NAMES
    if not training:
        torch.testing.assert_close(
            recorder.nsi, plain().nsi, rtol=0.05, atol=0)


def test_inference_mode_differs_by_rounding():
    """There any dispatch mode changes linear layers of transposed inputs."""
    model = net()
    with torch.inference_mode():
        wanted = model(X)
        with TrajectoryRecorder(model) as recorder:
            out = model(X)
        torch.testing.assert_close(out, wanted)
    assert_equal(recorder)


def wrapped(wrap):
    def change(model):
        for k, block in enumerate(model.blocks):
            model.blocks[k] = wrap(block)
        return model

    return change


class Orig(nn.Module):
    """A wrapper that calls what is in it ``_orig_mod``, as OptimizedModule."""

    def __init__(self, block, name='_orig_mod'):
        super().__init__()
        self.add_module(name, block)
        self.name = name

    def forward(self, *args, **kwargs):
        return getattr(self, self.name)(*args, **kwargs)


def patch(block):
    """As hooks of accelerate set a forward on the object."""
    forward = block.forward
    block.forward = lambda *args, **kwargs: forward(*args, **kwargs)
    return block


def decorate(block):
    class Decorated(type(block)):
        @functools.wraps(type(block).forward)
        def forward(self, *args, **kwargs):
            return super().forward(*args, **kwargs)

    block.__class__ = Decorated
    return block


def accelerate_hook(block):
    hooks = pytest.importorskip('accelerate.hooks')
    hooks.add_hook_to_module(block, hooks.AlignDevicesHook('cpu'))
    return block


def checkpointed(block):
    return checkpoint_wrapper(block)


def lora(model):
    peft = pytest.importorskip('peft')
    cfg = peft.LoraConfig(target_modules=['mlp.0', 'mlp.3'])
    return peft.inject_adapter_in_model(cfg, model).eval()


@pytest.mark.parametrize('change', [
    wrapped(Orig), wrapped(lambda b: Orig(b, '_fsdp_wrapped_module')),
    wrapped(lambda b: Orig(b, 'module')), wrapped(checkpointed),
    wrapped(patch), wrapped(decorate), wrapped(accelerate_hook), lora,
    nn.DataParallel, torch.optim.swa_utils.AveragedModel, copy.deepcopy,
], ids=['_orig_mod', '_fsdp_wrapped_module', 'module', 'checkpoint_wrapper',
        'patched', 'decorated', 'accelerate', 'peft', 'DataParallel',
        'AveragedModel', 'copy'])
def test_wrapped_and_patched(change):
    _, recorder = recorded(change(net()), X)
    assert recorder.blocks == NAMES and recorder.excluded == ['blocks.0']
    assert_equal(recorder)


@pytest.mark.parametrize('kind', ['DDP', 'FSDP1', 'FSDP2'])
def test_distributed(kind, one_process):
    dist = torch.distributed
    if kind == 'FSDP2' and not hasattr(dist.fsdp, 'fully_shard'):
        pytest.skip('PyTorch before 2.6')
    model = net()
    if kind == 'DDP':
        model = nn.parallel.DistributedDataParallel(model)
    elif kind == 'FSDP1':
        for k, block in enumerate(model.blocks):
            model.blocks[k] = dist.fsdp.FullyShardedDataParallel(
                block, device_id=torch.device('cpu'))
    else:
        mesh = dist.device_mesh.init_device_mesh('cpu', (1, ))
        for block in model.blocks:
            dist.fsdp.fully_shard(block, mesh=mesh)
    _, recorder = recorded(model, X)
    assert recorder.blocks == NAMES
    assert_equal(recorder)


class Checkpointing(Net):
    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x.mean(1))


@pytest.mark.parametrize('reentrant', [False, True])
def test_nothing_is_recorded_while_a_backward_runs(reentrant):
    model = net()
    model.__class__ = Checkpointing
    model.reentrant = reentrant
    with TrajectoryRecorder(model) as recorder:
        model(X.clone().requires_grad_()).sum().backward()
        model(X.clone().requires_grad_()).sum().backward()
    assert len(recorder) == 4
    torch.testing.assert_close(
        recorder.nsi, plain().nsi.repeat(2, 1), rtol=1e-6, atol=0)


def test_a_gradient_inside_of_the_forward_pass():
    class Forces(Net):
        def forward(self, x):
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                energy = super().forward(x).sum()
                return torch.autograd.grad(energy, x)[0]

    model = net()
    model.__class__ = Forces
    _, recorder = recorded(model, X)
    assert_equal(recorder)


class Counting(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


def test_other_dispatch_modes_see_the_model_alone():
    model, counts = net(), []
    for record in (False, True):
        recorder = TrajectoryRecorder(model)
        with Counting() as mode, FlopCounterMode(display=False) as flops:
            if record:
                recorder.start()
            with torch.no_grad():
                model(X)
        counts.append((mode.seen, flops.get_total_flops()))
    recorder.stop()
    assert counts[0] == counts[1] and counts[0][1] > 0
    assert_equal(recorder)


def test_another_mode_inside_of_the_model():
    class Inside(Net):
        def forward(self, x):
            with Counting():
                return super().forward(x)

    model = net()
    model.__class__ = Inside
    _, recorder = recorded(model, X)
    assert_equal(recorder)


def test_an_error_that_is_caught_inside_of_the_model():
    class Forgiving(Net):
        def forward(self, x):
            try:
                self.blocks[0](x[..., :3])
            except RuntimeError:
                pass
            return super().forward(x)

    model = net()
    model.__class__ = Forgiving
    _, recorder = recorded(model, X)
    assert recorder.blocks == NAMES
