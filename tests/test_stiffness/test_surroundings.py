"""Whatever stands around a model: wrappers, patches, modes, precision."""

import copy
import functools
import pickle
from contextlib import nullcontext

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
from tests.test_stiffness.reference import MAPS
from tests.test_stiffness.test_recorder import Net
from tests.utils import perturb

NOTHING = nullcontext()


def net():
    """A network that draws random numbers."""
    model = perturb(Net())
    model.blocks[1].last = nn.Dropout(0.2)
    return model


class Counting(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


class Inside(Net):
    """A gradient and another mode inside of the forward pass."""

    def forward(self, x):
        with torch.enable_grad(), Counting():
            x = x.detach().requires_grad_()
            return torch.autograd.grad(super().forward(x).sum(), x)[0]


class Wrapper(nn.Module):
    """As OptimizedModule; ``call`` runs what is in it."""

    def __init__(self, block, call=lambda module, x: module(x)):
        super().__init__()
        self._orig_mod, self.call = block, call

    def forward(self, x):
        return self.call(self._orig_mod, x)


def wrapped(wrap):
    def change(model):
        for k, block in enumerate(model.blocks):
            model.blocks[k] = wrap(block)
        return model

    return change


def patch(block, call):
    """As hooks of accelerate set a forward on the object."""
    block.forward = functools.partial(call, block.forward)
    return block


def lora(model):
    peft = pytest.importorskip('peft')
    cfg = peft.LoraConfig(target_modules=['f.0', 'f.2'])
    return peft.inject_adapter_in_model(cfg, model)


def fsdp2(model):
    dist = torch.distributed
    if not hasattr(dist.fsdp, 'fully_shard'):
        pytest.skip('PyTorch before 2.6')
    mesh = dist.device_mesh.init_device_mesh('cpu', (1, ))
    for block in model.blocks:
        dist.fsdp.fully_shard(block, mesh=mesh)
    return model


def computes_inside(model):
    model.__class__ = Inside
    return model


CHECKPOINTS = {kind: functools.partial(
    checkpoint, use_reentrant=kind == 'reentrant')
    for kind in ('reentrant', 'other')}
SITUATIONS = {
    'as it is': lambda model: model,
    '_orig_mod': wrapped(Wrapper),
    'checkpoint_wrapper': wrapped(checkpoint_wrapper),
    **{f'{kind} checkpoint of blocks': wrapped(
        lambda block, run=run: patch(block, run))
       for kind, run in CHECKPOINTS.items()},
    **{f'{kind} checkpoint of all': (
        lambda model, run=run: Wrapper(model, run))
       for kind, run in CHECKPOINTS.items()},
    'peft': lora,
    'DataParallel': nn.DataParallel,
    'AveragedModel': torch.optim.swa_utils.AveragedModel,
    'copy': copy.deepcopy,
    'pickle': lambda model: pickle.loads(pickle.dumps(model)),
    'DDP': nn.parallel.DistributedDataParallel,
    'FSDP1': wrapped(
        lambda block: torch.distributed.fsdp.FullyShardedDataParallel(
            block, device_id=torch.device('cpu'))),
    'FSDP2': fsdp2,
    'a mode inside': computes_inside,
}


def passed(model, forward=NOTHING, backward=NOTHING):
    """Output and gradients of a pass whose parts run in contexts."""
    torch.manual_seed(1)
    model.zero_grad()
    x = MAPS.clone().requires_grad_()
    with forward:
        out = model(x)
    if out.requires_grad:
        with backward:
            out.square().sum().backward()
    return [out, *(t.grad for t in (x, *model.parameters())
                   if t.grad is not None)]


@functools.cache
def plain():
    recorder = TrajectoryRecorder(net())
    passed(recorder.model, recorder)
    return recorder.nsi


@pytest.mark.parametrize('during', [False, True])
@pytest.mark.parametrize('name', SITUATIONS)
def test_a_measurement_changes_nothing(name, during, one_process):
    """Outputs and gradients are the same to the bit, readings to a rounding.

    Also where the model came to be so while somebody recorded it, and where
    somebody records what runs again at the time of backward.
    """
    model = net()
    with TrajectoryRecorder(model) if during and name != 'peft' else NOTHING:
        model = SITUATIONS[name](model)
    wanted = passed(model)
    recorder = TrajectoryRecorder(model)
    for contexts in ((recorder, recorder), (recorder, NOTHING),
                     (NOTHING, recorder)):
        found = passed(model, *contexts)
        assert all(map(torch.equal, found, wanted))
    assert recorder.blocks == ['blocks.1', 'blocks.2', 'blocks.3']
    assert recorder.excluded == ['blocks.0']
    torch.testing.assert_close(
        recorder.nsi, plain().repeat(2, 1), rtol=1e-6, atol=0)


def test_other_dispatch_modes_see_the_model_alone():
    model, counts = net(), []
    for recorder in (NOTHING, TrajectoryRecorder(model)):
        with Counting() as mode, FlopCounterMode(display=False) as flops:
            passed(model, recorder)
        counts.append((mode.seen, flops.get_total_flops()))
    assert counts[0] == counts[1] and counts[0][1] > 0
