"""Blocks, gates and steps that stand in wrappers, one by one."""

import copy

import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    checkpoint_wrapper,
)
from torchvision.models.resnet import BasicBlock, ResNet

from mmstepnet import fold, insert_steps, remove_steps, step_parameters
from tests.utils import not_on_torch_21

from .insertion import perturb, perturb_gates, steps_of, with_moved_steps


class Around(nn.Module):
    """Somebody's wrapper."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)


WRAPPERS = dict(
    compiled=lambda m: torch.compile(m, backend='eager'),
    checkpointed=checkpoint_wrapper, somebodys=Around)


def resnet():
    return ResNet(BasicBlock, [2, 2, 1, 1], num_classes=5)


X = torch.randn(4, 3, 32, 32).double()


def test_names_without_wrappers():
    model = resnet()
    model.layer1[1] = checkpoint_wrapper(Around(model.layer1[1]))
    assert insert_steps(Around(model), blocks='layer1.1') == ['layer1.1']
    detector = nn.Module()
    detector.backbone, detector.head = resnet(), resnet()
    names = insert_steps(Around(detector))
    assert names and all(name.startswith('backbone.') for name in names)


@not_on_torch_21('has no FSDP on CPUs')
@pytest.mark.parametrize('kind', ['DDP', 'FSDP1', 'FSDP2'])
def test_what_other_processes_share_is_refused(kind, one_process):
    fsdp = pytest.importorskip('torch.distributed.fsdp')

    def shard(model):
        if kind == 'DDP':
            return nn.parallel.DistributedDataParallel(model)
        if kind == 'FSDP1':
            model.layer2[1] = fsdp.FullyShardedDataParallel(
                model.layer2[1], device_id=torch.device('cpu'),
                use_orig_params=True)
        elif not hasattr(fsdp, 'fully_shard'):
            pytest.skip('PyTorch before 2.6')
        else:
            mesh = dist.device_mesh.init_device_mesh('cpu', (1, ))
            fsdp.fully_shard(model.layer2[1], mesh=mesh)
        return model

    where = 'the model' if kind == 'DDP' else r'layer2\.1'
    for do in insert_steps, remove_steps:
        model = resnet()
        if do is remove_steps:
            insert_steps(model)
        model = shard(model)
        keys = set(model.state_dict())
        with pytest.raises(RuntimeError, match=rf'{where} is in .*before it'):
            do(model)
        assert set(model.state_dict()) == keys
    assert len(step_parameters(model)[1]['params']) == 15


@pytest.mark.parametrize('wrap', WRAPPERS.values(), ids=WRAPPERS)
@pytest.mark.parametrize('attention', ['StepNet', 'SRM'])
def test_gates_in_wrappers(attention, wrap):
    """Each is called as what is in it wants."""
    torch._dynamo.reset()
    plain = with_moved_steps(
        resnet(), attention=attention, first_block=True).double()
    model = copy.deepcopy(plain)
    for step in steps_of(model).values():
        step.attention = wrap(step.attention)
    torch.testing.assert_close(fold(model)(X), plain.eval()(X))
    found = []
    for m in (plain, model):
        out = m.train()(X)
        out.square().sum().backward()
        found.append((out, *(p.grad for s in steps_of(m).values()
                             for p in s.attention.parameters())))
    for a, b in zip(*found):
        torch.testing.assert_close(b, a, rtol=1e-6, atol=1e-6)
    torch._dynamo.reset()


def test_steps_in_wrappers():
    """As by a policy that wraps all that has parameters."""
    plain = perturb(resnet()).double().eval()
    before = plain(X)
    insert_steps(plain)
    perturb_gates(plain)
    model = copy.deepcopy(plain)
    for block in model.modules():
        if isinstance(block, BasicBlock) and hasattr(block, 'step'):
            block.step.attention.bn = checkpoint_wrapper(
                block.step.attention.bn)
            block.step = checkpoint_wrapper(block.step)
    torch.testing.assert_close(model(X), plain(X))
    torch.testing.assert_close(fold(model)(X), plain(X))
    assert len(remove_steps(model)) == 3
    torch.testing.assert_close(model(X), before)


def test_split_batch_norms():
    """timm makes norms of maps of all, which share their batch."""
    layers = pytest.importorskip('timm.layers')
    plain = with_moved_steps(resnet(), attention='SRM').double()
    model = layers.convert_splitbn_model(copy.deepcopy(plain), 2).double()
    torch.testing.assert_close(model.eval()(X), plain.eval()(X))
    # In training each half of the batch is normalised by itself.
    torch.testing.assert_close(
        model.train()(X)[:2], plain.train()(X[:2]))
