"""Whatever stands around a model: wrappers, patches, modes, precision."""

import copy
import functools
import pickle

import pytest
import torch
import torch.distributed.fsdp
import torch.nn as nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    checkpoint_wrapper,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from mmstepnet.stiffness import TrajectoryRecorder
from tests.test_stiffness.reference import recorded
from tests.test_stiffness.test_recorder import MAPS, Net
from tests.utils import perturb

NAMES = ['blocks.1', 'blocks.2', 'blocks.3']


def net():
    return perturb(Net()).eval()


@functools.cache
def plain():
    return recorded(net(), MAPS).nsi


def assert_as_plain(model):
    """Outputs are the same to the bit, readings to a kernel's rounding."""
    wanted = model(MAPS)
    with TrajectoryRecorder(model) as recorder:
        assert torch.equal(model(MAPS), wanted)
    assert recorder.blocks == NAMES and recorder.excluded == ['blocks.0']
    torch.testing.assert_close(recorder.nsi, plain(), rtol=1e-6, atol=0)


@pytest.mark.parametrize('context', [
    torch.enable_grad, torch.no_grad,
    lambda: torch.autocast('cpu', torch.bfloat16)])
def test_outputs_and_gradients_are_the_same_to_the_bit(context):
    """Random numbers of a training included."""
    gradients = []
    for record in (False, True):
        model = net()
        model.blocks[1].last = nn.Dropout(0.2).train()
        torch.manual_seed(1)
        recorder = TrajectoryRecorder(model)
        if record:
            recorder.start()
        with context():
            out = model(MAPS)
        recorder.stop()
        grads = [out]
        if out.requires_grad:
            out.square().sum().backward()
            grads += [p.grad for p in model.parameters()]
        gradients.append(grads)
    assert all(map(torch.equal, *gradients))
    assert recorder.blocks == NAMES


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


def accelerate_hook(block):
    hooks = pytest.importorskip('accelerate.hooks')
    hooks.add_hook_to_module(block, hooks.AlignDevicesHook('cpu'))
    return block


def lora(model):
    peft = pytest.importorskip('peft')
    cfg = peft.LoraConfig(target_modules=['first', 'second'])
    return peft.inject_adapter_in_model(cfg, model).eval()


@pytest.mark.parametrize('change', [
    wrapped(Orig), wrapped(lambda b: Orig(b, 'module')),
    wrapped(checkpoint_wrapper), wrapped(patch), wrapped(accelerate_hook),
    lora, nn.DataParallel, torch.optim.swa_utils.AveragedModel, copy.deepcopy,
    lambda model: pickle.loads(pickle.dumps(model)),
], ids=['_orig_mod', 'module', 'checkpoint_wrapper', 'patched', 'accelerate',
        'peft', 'DataParallel', 'AveragedModel', 'copy', 'pickle'])
def test_wrapped_and_patched(change):
    """Also where that was done while somebody recorded the model."""
    model = net()
    assert_as_plain(change(model))
    if change is not lora:
        model = net()
        with TrajectoryRecorder(model):
            changed = change(model)
        assert_as_plain(changed)


@pytest.mark.parametrize('kind', ['DDP', 'FSDP1', 'FSDP2'])
def test_distributed(kind, one_process):
    dist = torch.distributed
    if kind == 'FSDP2' and not hasattr(dist.fsdp, 'fully_shard'):
        pytest.skip('PyTorch before 2.6')
    model = net()
    if kind == 'DDP':
        model = nn.parallel.DistributedDataParallel(model)
    elif kind == 'FSDP1':
        model = wrapped(lambda b: dist.fsdp.FullyShardedDataParallel(
            b, device_id=torch.device('cpu')))(model)
    else:
        mesh = dist.device_mesh.init_device_mesh('cpu', (1, ))
        for block in model.blocks:
            dist.fsdp.fully_shard(block, mesh=mesh)
    assert_as_plain(model)


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
                model(MAPS)
        recorder.stop()
        counts.append((mode.seen, flops.get_total_flops()))
    assert counts[0] == counts[1] and counts[0][1] > 0


class Inside(Net):
    """A gradient and another mode inside of the forward pass."""

    def forward(self, x):
        with torch.enable_grad(), Counting():
            x = x.detach().requires_grad_()
            return torch.autograd.grad(super().forward(x).sum(), x)[0]


def test_what_a_model_does_inside():
    model = net()
    model.__class__ = Inside
    assert_as_plain(model)
