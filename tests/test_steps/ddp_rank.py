"""One of two processes of test_distributed.py, given the job's folder."""

import sys

import pytest
import torch
import torch.distributed as dist
import torch.distributed.fsdp as fsdp
from torch.nn.parallel import DistributedDataParallel

import mmstepnet
from tests.small_networks import (
    NETWORKS,
    ByHand,
    inputs,
    network,
    stepped_pair,
)
from tests.utils import steps_of


def flat(model):
    return fsdp.FullyShardedDataParallel(
        model, device_id=torch.device('cpu'), use_orig_params=True
    )


def by_parameter(model):
    mesh = dist.device_mesh.init_device_mesh('cpu', (2,))
    for part in (*model, model):
        fsdp.fully_shard(part, mesh=mesh)
    return model


def train(model, x):
    """In eval mode: a norm's statistics would be each rank's own."""
    groups = (
        [dict(params=model.parameters())]
        if isinstance(model, ByHand)
        else mmstepnet.step_parameters(model)
    )
    optimizer = torch.optim.SGD(groups, lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    with torch.no_grad():
        return model(x)


dist.init_process_group('gloo')
folder, rank = sys.argv[1], dist.get_rank()
WRAPS = dict(DDP=DistributedDataParallel)
if torch.__version__ >= (2, 2):  # older ones shard on GPUs alone
    WRAPS['FSDP1'] = flat
if hasattr(fsdp, 'fully_shard'):
    WRAPS['FSDP2'] = by_parameter
for wrap in WRAPS:
    for kind in NETWORKS:
        model, reference = stepped_pair(kind)
        x = inputs(kind)
        before = reference.eval()(x)
        wrapped = WRAPS[wrap](model.eval())
        out, wanted = train(wrapped, x[2 * rank :][:2]), train(reference, x)
        assert (wanted - before).abs().max() > 1e-3
        torch.testing.assert_close(
            out, wanted[2 * rank :][:2], rtol=1e-4, atol=1e-5
        )
        with pytest.raises(RuntimeError, match='before it is wrapped'):
            mmstepnet.remove_steps(wrapped)
        with pytest.raises(RuntimeError, match='before it is wrapped'):
            mmstepnet.insert_steps(WRAPS[wrap](network(kind)), example=x)
        if wrap == 'FSDP1':
            continue
        path = f'{folder}/{wrap}-{kind}.safetensors'
        mmstepnet.save_steps(wrapped, path)
        dist.barrier()
        with torch.no_grad():
            for step in steps_of(wrapped).values():
                for p in step.attention.parameters():
                    p.zero_()
        assert mmstepnet.load_steps(wrapped, path) == ['0', '1', '2']
        torch.testing.assert_close(wrapped(x[2 * rank :][:2]), out)
        plain = network(kind)  # the file is whole
        mmstepnet.load_steps(plain, path)
        for one, other in zip(
            steps_of(plain).values(), steps_of(wrapped).values()
        ):
            for p, own in zip(one.parameters(), other.parameters()):
                assert torch.equal(
                    p,
                    own.full_tensor() if hasattr(own, 'full_tensor') else own,
                )
dist.destroy_process_group()
