"""Steps where branches end, against the same network written by hand."""

import copy
import pickle
import threading
from functools import partial

import pytest
import torch
import torch.nn as nn
import torch.utils.checkpoint as cp
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    checkpoint_wrapper,
)
from torch.nn.utils.fusion import fuse_conv_bn_eval

from mmstepnet.stiffness import TrajectoryRecorder
from tests.utils import not_on_torch_21

from .small_networks import NETWORKS, inputs, stepped_pair


def results(model, x):
    """Output, and gradients of input and parameters by shape and sum."""
    x = x.clone().requires_grad_()
    out = model(x)
    out.square().mean().backward()
    grads = sorted((tuple(p.shape), float(p.grad.double().norm()))
                   for p in model.parameters() if p.grad is not None)
    return out.detach(), x.grad, grads


def check_equal(model, reference, x, tolerance=1e-5):
    got, wanted = results(model, x), results(reference, x)
    for a, b in zip(got[:2], wanted[:2]):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
    assert len(got[2]) == len(wanted[2])
    for (shape, a), (other, b) in zip(got[2], wanted[2]):
        assert shape == other and a == pytest.approx(b, rel=1e-3, abs=1e-6)


def checkpointed(model, reentrant):
    for block in model:
        block.forward = partial(
            cp.checkpoint, block.forward, use_reentrant=reentrant)
    return model


def compiled_blocks(model):
    for k, block in enumerate(model):
        model[k] = torch.compile(block, backend='eager', fullgraph=True)
    return model


def after_a_pass_that_raised(model):
    handle = model[1].register_forward_pre_hook(
        lambda *args: (_ for _ in ()).throw(KeyError('once')))
    with pytest.raises(KeyError):
        model(torch.zeros(next(
            shape for block, shape in NETWORKS.values()
            if isinstance(model[0], block))))
    handle.remove()
    return model


def wrapped_children(model):
    for block in model:
        for name, child in list(block.named_children()):
            if next(child.parameters(), None) is not None and (
                    'step' not in name):
                setattr(block, name, checkpoint_wrapper(child))
    return model


SITUATIONS = {
    'as it is': lambda model: model,
    'deepcopy': copy.deepcopy,
    'pickle': lambda model: pickle.loads(pickle.dumps(model)),
    'average': lambda model: torch.optim.swa_utils.AveragedModel(
        model).module,
    'checkpoint': partial(checkpointed, reentrant=False),
    'reentrant checkpoint': partial(checkpointed, reentrant=True),
    'checkpoint inside': wrapped_children,
    'compiled': partial(torch.compile, backend='aot_eager', fullgraph=True),
    'compiled blocks': compiled_blocks,
    'after a pass that raised': after_a_pass_that_raised,
}


@pytest.mark.parametrize('kind', NETWORKS)
@pytest.mark.parametrize('situation', SITUATIONS)
@pytest.mark.parametrize('training', [True, False])
def test_equals_the_network_by_hand(kind, situation, training):
    model, reference = stepped_pair(kind)
    model.train(training)
    reference.train(training)
    torch._dynamo.reset()
    if situation == 'after a pass that raised':
        model.eval()
        reference.eval()
    model = SITUATIONS[situation](model)
    check_equal(model, reference, inputs(kind))


def test_spots_are_names():
    """Whoever stands at a spot when the block runs is hooked."""
    model, reference = stepped_pair('tokens')
    for k in range(3):
        for name in 'drop', 'mlp':
            new = copy.deepcopy(getattr(reference.blocks[k], name))
            setattr(model[k], name, new)
    check_equal(model.eval(), reference.eval(), inputs('tokens'))
    model, reference = stepped_pair('maps')
    for k in range(3):
        norm = nn.SyncBatchNorm.convert_sync_batchnorm(model[k].norm)
        model[k].norm = norm
    check_equal(model.eval(), reference.eval(), inputs('maps'))
    for block in model:
        block.conv2 = fuse_conv_bn_eval(block.conv2, copy.deepcopy(
            block.norm))
        block.norm = nn.Identity()
    torch.testing.assert_close(model(inputs('maps')),
                               reference(inputs('maps')))


def test_quantised_layers():
    model, reference = stepped_pair('tokens')
    model, reference = (torch.ao.quantization.quantize_dynamic(
        m.eval(), {nn.Linear}) for m in (model, reference))
    torch.testing.assert_close(model(inputs('tokens')),
                               reference(inputs('tokens')))


@not_on_torch_21('cannot export what Dynamo knows no class attribute of')
@pytest.mark.parametrize('kind', NETWORKS)
def test_export(kind):
    model, reference = stepped_pair(kind)
    x = inputs(kind)
    program = torch.export.export(model.eval(), (x, ))
    torch.testing.assert_close(program.module()(x), reference.eval()(x))


def test_fx_traces_both_spots_or_neither():
    """A state at a leaf and a branch at a container cannot be traced."""
    model, reference = stepped_pair('maps')
    x = inputs('maps')
    torch.testing.assert_close(
        torch.fx.symbolic_trace(model.eval())(x), reference.eval()(x))
    model, _ = stepped_pair('tokens')
    with pytest.raises(RuntimeError, match='torch.fx'):
        torch.fx.symbolic_trace(model)


def test_threads():
    model, reference = stepped_pair('tokens')
    model.eval()
    given = [inputs('tokens') * (k + 1) for k in range(4)]
    with torch.no_grad():
        wanted = [reference.eval()(x) for x in given]
    worst = [0.0] * 4

    def run(k):
        for _ in range(15):
            with torch.no_grad():
                out = model(given[k])
            worst[k] = max(worst[k], float((out - wanted[k]).abs().max()))

    threads = [threading.Thread(target=run, args=(k, )) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(worst) < 1e-5


def test_a_replica_of_data_parallel():
    model, _ = stepped_pair('maps')
    replica = copy.deepcopy(model)
    for block in replica:
        block._is_replica = True  # as nn.parallel.replicate marks them
    with pytest.raises(RuntimeError, match='DistributedDataParallel'):
        replica(inputs('maps'))


def test_a_checkpoint_that_hides_the_state():
    model, _ = stepped_pair('tokens')
    model[1].mlp[2] = checkpoint_wrapper(model[1].mlp[2])
    model[1].attn_step.place = model[1].mlp_step.place._replace(
        name='attn_step', branch=model[1].mlp_step.place.branch._replace(
            module='mlp.2'))
    model[1].mlp_step.detach(model[1])
    with pytest.raises(RuntimeError, match='checkpoint the whole block'):
        model(inputs('tokens')).sum().backward()


class Skips(nn.Module):
    """Goes another way when it is told to."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1)
        self.drop = nn.Identity()
        self.way = 'drop'

    def forward(self, x):
        f = self.conv(x)
        if self.way == 'nothing':
            return x
        return x + (self.drop(f) if self.way == 'drop' else f)


def test_a_step_that_did_not_run_is_loud():
    from mmstepnet import insert_steps
    model = nn.Sequential(*(Skips() for _ in range(3)))
    x = inputs('maps')
    insert_steps(model, example=x)
    model(x)
    model[1].way = 'nothing'  # as stochastic depth that skips a block
    model(x)
    model[1].way = 'around'
    with pytest.raises(RuntimeError, match='step of Skips ran 0 times'):
        model(x)


@pytest.mark.parametrize('kind', NETWORKS)
def test_recorder(kind):
    """Its mean of Δt is that of the network by hand."""
    model, reference = stepped_pair(kind)
    with TrajectoryRecorder(model.eval(), '2') as recorder, torch.no_grad():
        model(inputs(kind))
    seen = []
    for gate in reference.eval().gates[2]:
        gate.register_forward_hook(
            lambda gate, args, out: seen.append(out.mean(1)))
    with torch.no_grad():
        reference(inputs(kind))
    torch.testing.assert_close(
        recorder.record['step_mean'].float(), torch.stack(seen, 1),
        rtol=1e-5, atol=1e-6)
    assert (recorder.record['unit'] / recorder.nsi - 1).abs().max() > 1e-3
