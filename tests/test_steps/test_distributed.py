"""Steps over several processes."""

import copy
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from mmstepnet.steps.modules import steps_of
from tests.programs import run_ranks
from tests.test_steps.test_modes import (
    cases,
    every,
    gradients,
    stepped,
)
from tests.utils import not_on_torch_21


@every
def test_two_processes(library, name, tmp_path):
    """DDP's gradients of two halves are one process's of the whole."""
    model, inputs = stepped(library, name)
    torch.save((model, inputs), tmp_path / 'job.pth')
    codes, outputs = run_ranks(
        2, Path(__file__).with_name('ddp_rank.py'), tmp_path)
    assert codes == [0, 0], outputs
    first, second = (torch.load(tmp_path / f'{rank}.pth')
                     for rank in range(2))
    wanted = gradients(model, inputs)
    for key, grad in wanted.items():
        for found in (first, second):
            torch.testing.assert_close(
                found['grads'][key], grad, rtol=1e-3,
                atol=1e-4 * float(grad.abs().max()))
    # Two steps in training mode: weights agree, whatever the statistics.
    for key, value in first['weights'].items():
        assert torch.equal(value, second['weights'][key])
        assert value.isfinite().all()
    assert any(not torch.equal(value, model.state_dict()[key])
               for key, value in first['weights'].items()
               if '.attention.' in key)


@not_on_torch_21('shards on GPUs alone')
@cases({'torchvision': ('ResNet, basic', ), 'timm': ('ConvNeXt', 'ViT')})
@pytest.mark.parametrize('kind', [
    'flat parameters', 'flat parameters, original', 'parameter by parameter'])
def test_sharded(library, name, kind, one_process, calls):
    """One process, whose gates learn as they do without FSDP."""
    from torch.distributed.fsdp import (
        FullyShardedDataParallel,
        StateDictType,
        fully_shard,
    )
    model, inputs = stepped(library, name)
    model.double()
    inputs = inputs.double()
    wanted = copy.deepcopy(model)
    learn(wanted, inputs)
    calls.clear()
    if kind.startswith('flat'):
        wrapped = FullyShardedDataParallel(
            model, device_id=torch.device('cpu'),
            use_orig_params='original' in kind)
        learn(wrapped, inputs)
        assert bool(calls) == (library == 'torchvision')
        with FullyShardedDataParallel.state_dict_type(
                wrapped, StateDictType.FULL_STATE_DICT):
            found = wrapped.state_dict()
    else:
        mesh = dist.device_mesh.init_device_mesh('cpu', (1, ))
        parts = [m for m in model.modules() if steps_of(m)]
        for part in (*parts, model):
            fully_shard(part, mesh=mesh)
        learn(model, inputs)
        assert bool(calls) == (library == 'torchvision')
        found = {key: value.full_tensor() if hasattr(
            value, 'full_tensor') else value
            for key, value in model.state_dict().items()}
    moved = 0
    for key, before in stepped(library, name)[
            0].double().state_dict().items():
        value = wanted.state_dict()[key]
        torch.testing.assert_close(found[key], value, rtol=1e-6, atol=1e-9)
        moved += '.attention.' in key and not torch.equal(value, before)
    assert moved


def learn(model, inputs):
    """A step of a training, in eval mode."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    gradients(model, inputs)
    optimizer.step()
