"""Networks with steps, against the same network written by hand."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
import torch.nn as nn
import torch.utils.checkpoint as cp
from torch._dynamo.testing import CompileCounter
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    checkpoint_wrapper,
)
from torch.nn.utils.fusion import fuse_conv_bn_eval

from mmstepnet import fold, insert_steps, remove_steps, steps
from mmstepnet.steps.branch import Spot, attach, detach
from mmstepnet.stiffness import TrajectoryRecorder
from tests.small_networks import (
    NETWORKS,
    Around,
    inputs,
    network,
    stepped_pair,
)
from tests.utils import not_on_torch_21, perturb_gates, same, steps_of


def results(model, x):
    """Output, and gradients of input and parameters, these by their norm."""
    x = x.clone().requires_grad_()
    out = model(x)
    out.square().mean().backward()
    grads = sorted(
        (tuple(p.shape), p.grad.norm().item())
        for p in model.parameters()
        if p.grad is not None
    )
    return out.detach(), x.grad, grads


def check_equal(model, reference, x):
    got, wanted = results(model, x), results(reference, x)
    same(got[:2], wanted[:2])
    assert len(got[2]) == len(wanted[2])
    for (shape, a), (other, b) in zip(got[2], wanted[2]):
        assert shape == other and a == pytest.approx(b, rel=1e-9, abs=1e-10)


def checkpointed(model, reentrant=False, recorded=False):
    for block in model:
        block.forward = partial(
            cp.checkpoint, block.forward, use_reentrant=reentrant
        )
    if recorded:  # the forward pass alone
        TrajectoryRecorder(model).start(once=True)
    return model


def compiled_blocks(model):
    for k, block in enumerate(model):
        model[k] = torch.compile(block, backend='eager', fullgraph=True)
    return model


def zeros_for(model):
    return torch.zeros(
        next(
            shape
            for block, shape in NETWORKS.values()
            if isinstance(model[0], block)
        )
    ).double()


def compiled_behind_a_plain_one(model):
    """Of the same classes, as a teacher; their code is compiled once."""
    plain = copy.deepcopy(model)
    remove_steps(plain)
    torch.compile(plain, backend='aot_eager', fullgraph=True)(
        zeros_for(plain).requires_grad_()
    )
    return torch.compile(model, backend='aot_eager', fullgraph=True)


def after_a_pass_that_raised(model):
    handle = model[1].register_forward_pre_hook(
        lambda *args: (_ for _ in ()).throw(KeyError('once'))
    )
    with pytest.raises(KeyError):
        model.eval()(zeros_for(model))
    handle.remove()
    return model


def wrapped_children(model):
    for block in model:
        for name, child in list(block.named_children()):
            if next(child.parameters(), None) is not None and (
                'step' not in name
            ):
                setattr(block, name, checkpoint_wrapper(child))
    return model


def wrapped_gates(model, wrap):
    for step in steps_of(model).values():
        step.attention = wrap(step.attention)
    return model


def wrapped_steps(model):
    """As by a policy that wraps all that has parameters."""
    for name, step in steps_of(model).items():
        step.attention.bn = checkpoint_wrapper(step.attention.bn)
        block, _, key = name.rpartition('.')
        setattr(model.get_submodule(block), key, checkpoint_wrapper(step))
    return model


SITUATIONS = {
    'as it is': lambda model: model,
    'deepcopy': copy.deepcopy,
    'pickle': lambda model: pickle.loads(pickle.dumps(model)),
    'average': lambda model: torch.optim.swa_utils.AveragedModel(model).module,
    'checkpoint': checkpointed,
    'reentrant checkpoint': partial(checkpointed, reentrant=True),
    'checkpoint, recorded': partial(checkpointed, recorded=True),
    'checkpoint inside': wrapped_children,
    'compiled': compiled_behind_a_plain_one,
    'compiled blocks': compiled_blocks,
    'compiled gates': partial(
        wrapped_gates, wrap=partial(torch.compile, backend='eager')
    ),
    'wrapped gates': partial(wrapped_gates, wrap=Around),
    'wrapped steps': wrapped_steps,
    'folded': lambda model: fold(wrapped_gates(model, Around)),
    'after a pass that raised': after_a_pass_that_raised,
}


@pytest.mark.parametrize(
    'situation, kind, training',
    [
        (situation, kind, training)
        for situation in SITUATIONS
        for kind in NETWORKS
        for training in (True, False)
        # A compiler sees hooks alike in both modes; the tail by hand differs.
        if training or kind == 'fused' or 'compiled' not in situation
    ],
)
def test_equals_the_network_by_hand(situation, kind, training):
    model, reference = stepped_pair(kind)
    model.train(training)
    torch._dynamo.reset()
    model = SITUATIONS[situation](model)
    reference.train(model.training)
    x = inputs(kind)
    if situation == 'folded':
        same(model(x), reference(x))
    else:
        check_equal(model, reference, x)


@pytest.mark.parametrize('kind', NETWORKS)
def test_steps_in_wrappers_are_taken_out(kind):
    model, _ = stepped_pair(kind)
    assert remove_steps(wrapped_steps(model)) == ['0', '1', '2']
    x = inputs(kind)
    assert torch.equal(model.eval()(x), network(kind).eval()(x))


@pytest.mark.parametrize('kind', ['maps', 'fused'])
def test_a_checkpoint_updates_statistics_twice(kind):
    """As PyTorch's BNs do."""
    model = checkpointed(stepped_pair(kind)[0])
    model(inputs(kind)).sum().backward()
    assert {
        int(t) for name, t in model.named_buffers() if 'num_batches' in name
    } == {2}


def test_spots_are_names():
    """Whoever stands at a spot when the block runs is hooked."""
    model, reference = stepped_pair('tokens')
    for k in range(3):
        for name in 'drop', 'mlp':
            new = copy.deepcopy(getattr(reference.blocks[k], name))
            setattr(model[k], name, new)
    torch._dynamo.reset()
    compiled = torch.compile(model.eval(), backend='eager')
    with pytest.raises(Exception, match='call the model once before it'):
        compiled(inputs('tokens'))
    check_equal(model, reference.eval(), inputs('tokens'))
    torch._dynamo.reset()
    check_equal(compiled, reference, inputs('tokens'))
    model, reference = stepped_pair('maps')
    for k in range(3):
        norm = nn.SyncBatchNorm.convert_sync_batchnorm(model[k].norm)
        model[k].norm = norm
    check_equal(model.eval(), reference.eval(), inputs('maps'))
    for block in model:
        block.conv2 = fuse_conv_bn_eval(block.conv2, copy.deepcopy(block.norm))
        block.norm = nn.Identity()
    same(model(inputs('maps')), reference(inputs('maps')))


@pytest.mark.parametrize('kind', ['tokens', 'maps'])
def test_equal_blocks_share_one_graph(kind):
    """Twelve that are compiled one by one, as diffusers does."""
    model = nn.Sequential(
        *network(kind), *network(kind), *network(kind), *network(kind)
    ).eval()
    insert_steps(model, example=inputs(kind))
    perturb_gates(model)
    counter = CompileCounter()
    torch._dynamo.reset()
    with torch.no_grad(), torch._dynamo.config.patch(error_on_recompile=True):
        with steps.fused(False):  # a compiler reads the reference path
            wanted = model(inputs(kind))
        for block in model:
            block.compile(backend=counter, fullgraph=True)
        assert torch.equal(model(inputs(kind)), wanted)
    assert counter.frame_count == 1


def copied_step(model, reference):
    model[1].mlp_step = copy.deepcopy(model[1].mlp_step)


def wrapped_step(model, reference):
    model[1].mlp_step = Around(model[1].mlp_step)


def another_step(model, reference):
    model[1].mlp_step = model[0].mlp_step
    reference.gates[1][1] = reference.gates[0][1]


def copied_block(model, reference):
    model[1] = copy.deepcopy(model[0])
    reference.blocks[1], reference.gates[1] = (
        reference.blocks[0],
        reference.gates[0],
    )


def shared_layer(model, reference):
    """A step of each block stands at it."""
    model[1].norm1 = model[0].norm1
    reference.blocks[1].norm1 = reference.blocks[0].norm1


def another_layer(model, reference):
    """It brings the hooks of the block that it was made for."""
    model[1].mlp = copy.deepcopy(model[0].mlp)
    reference.blocks[1].mlp = reference.blocks[0].mlp


@pytest.mark.parametrize(
    'change',
    [
        copied_step,
        wrapped_step,
        another_step,
        copied_block,
        shared_layer,
        another_layer,
    ],
)
def test_what_stands_in_the_block_that_runs_is_taken(change):
    """And is taken out."""
    model, reference = stepped_pair('tokens')
    change(model.eval(), reference.eval())
    x = inputs('tokens')
    same(model(x), reference(x))
    assert remove_steps(model) == ['0', '1', '2']
    assert not any('step' in name for name, _ in model.named_modules())
    assert not any(
        m._forward_hooks or m._forward_pre_hooks for m in model.modules()
    )
    same(model(x), reference.blocks(x))


def quantised(model, x):
    """Its layers are in float32 alone, and round what is nearly the same."""
    found = torch.ao.quantization.quantize_dynamic(model.float(), {nn.Linear})

    def run(x):
        with steps.fused(False):
            return found(x.float()).double()

    return run


def exported(model, x):
    return torch.export.export(model, (x,)).module()


@pytest.mark.parametrize(
    'kind, change',
    [
        pytest.param('tokens', quantised, id='quantised tokens'),
        pytest.param(
            'maps',
            lambda model, x: torch.fx.symbolic_trace(model),
            id='traced maps',
        ),
        *(
            pytest.param(
                kind,
                exported,
                marks=not_on_torch_21(
                    'cannot export what Dynamo knows no class attribute of'
                ),
            )
            for kind in NETWORKS
        ),
    ],
)
def test_made_into_something_else(kind, change):
    model, reference = stepped_pair(kind)
    x = inputs(kind)
    if change is quantised:
        reference = change(reference.eval(), x)
    else:
        reference.eval()
    same(change(model.eval(), x)(x), reference(x))


@pytest.mark.parametrize('kind', NETWORKS)
def test_threads(kind):
    model, reference = stepped_pair(kind)
    model.eval()
    given = [inputs(kind) * (k % 4 + 1) for k in range(60)]
    with ThreadPoolExecutor(4) as pool:
        outs = list(pool.map(lambda x: model(x).detach(), given))
    for x, out in zip(given, outs):
        same(out, reference.eval()(x))


def hidden_state(model):
    """A checkpoint in a block that hides the state from the branch."""
    block = model[1]
    steps = block.attn_step, block.mlp_step
    detach(block)
    steps[1].place = steps[1].place._replace(branch=Spot('mlp.2', True, 0))
    for step in steps:
        attach(block, step)
    block.mlp = checkpoint_wrapper(block.mlp)


def replicated(model):
    for block in model:
        block._is_replica = True  # as nn.parallel.replicate marks them


@pytest.mark.parametrize(
    'change, words',
    [
        (hidden_state, 'checkpoint the whole block'),
        (replicated, 'DistributedDataParallel'),
        # A state at a leaf and a branch at a container cannot be traced.
        (torch.fx.symbolic_trace, 'torch.fx'),
    ],
)
def test_refused_when_it_runs(change, words):
    model, _ = stepped_pair('tokens')
    with pytest.raises(RuntimeError, match=words):
        change(model)
        model(inputs('tokens')).sum().backward()


class OwnNorm(nn.LayerNorm):
    """One of a library of its own, into which torch.fx looks."""


class EndsInALeaf(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.layer, self.end = (
            OwnNorm(8),
            nn.Linear(8, 8),
            nn.Identity(),
        )

    def forward(self, x):
        return x + self.end(self.layer(self.norm(x)))


def test_a_trace_that_looks_into_the_state_alone():
    """As of timm's ViT; to insert the steps anew would change nothing."""
    model = nn.Sequential(*(EndsInALeaf() for _ in range(3)))
    insert_steps(model, example=torch.rand(2, 5, 8))
    with pytest.raises(RuntimeError, match="but no branch, from 'end': let t"):
        torch.fx.symbolic_trace(model)


class Skips(nn.Module):
    """Goes another way when it is told to."""

    way = 'drop'

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1).double()
        self.drop = nn.Identity()

    def forward(self, x):
        f = self.conv(x)
        if self.way == 'nothing':
            return x
        return x + (self.drop(f) if self.way == 'drop' else f)


def test_a_step_that_did_not_run_is_loud():
    model = nn.Sequential(*(Skips() for _ in range(3)))
    x = inputs('maps')
    insert_steps(model, example=x)
    model(x)
    model[1].way = 'nothing'  # as stochastic depth that skips a block
    model(x)
    model[1].way = 'around'
    with pytest.raises(RuntimeError, match='step of Skips ran 0 times'):
        model(x)


@pytest.mark.parametrize('compiled', [False, True])
@pytest.mark.parametrize(
    'gone',
    [
        lambda block: delattr(block, 'drop'),
        lambda block: setattr(block, 'drop', None),
    ],
    ids=['deleted', 'None'],
)
def test_a_spot_that_has_gone(gone, compiled):
    """As timm's ``reparameterize_model`` drops layers."""
    model = nn.Sequential(*(Skips() for _ in range(3)))
    x = inputs('maps')
    before = model(x)
    insert_steps(model, example=x)
    for block in model:
        gone(block)
        block.way = 'around'
    torch._dynamo.reset()
    called = torch.compile(model, backend='eager') if compiled else model
    with pytest.raises(
        Exception,
        match=(
            'the module drop, at which step of Skips stands, is gone; call '
            'remove_steps before the network is changed in this way'
        ),
    ):
        called(x)
    assert remove_steps(model) == ['0', '1', '2']
    torch.testing.assert_close(model(x), before)


@pytest.mark.parametrize('kind', NETWORKS)
def test_recorder(kind):
    """Its mean of Δt is that of the network by hand."""
    model, reference = stepped_pair(kind)
    with TrajectoryRecorder(model.eval(), '2') as recorder, torch.no_grad():
        model(inputs(kind))
    seen = []
    for gate in reference.eval().gates[2]:
        gate.register_forward_hook(
            lambda gate, args, out: seen.append(out.mean(1))
        )
    with torch.no_grad():
        reference(inputs(kind))
    torch.testing.assert_close(  # recorded in float32
        recorder.record['step_mean'].double(),
        torch.stack(seen, 1),
        rtol=1e-6,
        atol=0,
    )
    assert (recorder.record['unit'] / recorder.nsi - 1).abs().max() > 1e-3
