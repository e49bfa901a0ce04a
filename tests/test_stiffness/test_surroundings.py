"""Whatever stands around a model: wrappers, patches, modes, precision."""

import copy
import functools
import threading

import pytest
import torch
import torch.distributed.fsdp
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    checkpoint_wrapper,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from mmstepnet import find_steps
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
def test_distributed(kind, tmp_path):
    dist = torch.distributed
    if kind == 'FSDP2' and not hasattr(dist.fsdp, 'fully_shard'):
        pytest.skip('PyTorch before 2.6')
    dist.init_process_group('gloo', f'file://{tmp_path}/store', rank=0,
                            world_size=1)
    try:
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
    finally:
        dist.destroy_process_group()


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


def test_a_fast_path_without_hooks_is_named():
    """Hooks alone switch off the fast path of PyTorch's encoder."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = perturb(nn.TransformerEncoder(layer, 3)).eval()
    with torch.no_grad():
        _, recorder = recorded(model, X)
    assert recorder.blocks == [n.replace('blocks', 'layers') for n in NAMES]
    assert 'TransformerEncoder' in TrajectoryRecorder.__doc__


def fails(model, error, message, *inputs):
    with TrajectoryRecorder(model) as recorder, torch.no_grad():
        with pytest.raises(error, match=f'(?s){message}'):
            model(*inputs)
    assert len(recorder) == 0
    assert not any(m._forward_hooks for m in model.modules())


def test_script_modules_are_refused():
    class Simple(nn.Module):
        def forward(self, x):
            return x + 1

    model = nn.Sequential(torch.jit.script(Simple()))
    with pytest.raises(TypeError, match='0 was made by torch.jit'):
        TrajectoryRecorder(model)
    with pytest.raises(TypeError, match='0 was made by torch.jit'):
        find_steps(model, X)


def test_jagged_tensors_are_refused():
    ragged = torch.nested.nested_tensor(
        [X[0], X[1, :4]], layout=torch.jagged)
    model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(2)])
    fails(model, ValueError, 'takes a nested tensor', ragged)


def test_subclasses_are_refused():
    tensors = pytest.importorskip(
        'torch.testing._internal.two_tensor').TwoTensor
    model = net()
    fails(model, ValueError, 'blocks.0.*TwoTensor', tensors(X, X.clone()))


class Adds(nn.Module):
    def __init__(self, add):
        super().__init__()
        self.layer, self.add = nn.Linear(8, 8), add

    def forward(self, x):
        return self.add(x, self.layer(x))


def test_states_of_one_dimension_are_refused():
    model = nn.Sequential(*[Adds(torch.add) for _ in range(3)])
    fails(model, ValueError, r'a state \(8,\): samples', X[0, 0])


def test_fused_additions_are_refused():
    model = nn.Sequential(*[
        Adds(lambda x, f: torch._foreach_add([x], [f])[0]) for _ in range(3)])
    fails(model, ValueError, 'a fused addition: _foreach_add', X)


def test_hyper_connections_are_refused():
    """Several streams, mixed by a matrix: no operand is the state."""
    class Mixes(nn.Module):
        def __init__(self):
            super().__init__()
            self.mix, self.layer = nn.Linear(2, 2), nn.Linear(8, 8)

        def forward(self, x):  # (N, L, C, streams)
            f = self.layer(x.mean(-1)).unsqueeze(-1)
            return self.mix(x) + f.expand_as(x)

    model = nn.Sequential(*[Mixes() for _ in range(3)])
    fails(model, ValueError, 'both operands were computed from the state.*'
          'hyper-connections', torch.stack([X, X], -1))


def test_threads():
    class Elsewhere(Net):
        def forward(self, x):
            outs = []
            thread = threading.Thread(
                target=lambda: outs.append(super(Elsewhere, self).forward(x)))
            thread.start()
            thread.join()
            return outs[0]

    model = net()
    model.__class__ = Elsewhere
    fails(model, ValueError, 'in another thread:.*blocks.0', X)


def test_the_same_model_in_two_threads():
    model, errors = net(), []

    class Calls(nn.Module):
        def forward(self, x):
            def call():
                try:
                    model(X)
                except RuntimeError as error:
                    errors.append(str(error))

            thread = threading.Thread(target=call)
            thread.start()
            thread.join()
            return x

    model.blocks.append(Calls())
    with TrajectoryRecorder(model), torch.no_grad():
        model(X)
    assert 'two threads' in errors[0]


def test_blocks_that_are_not_called():
    """``block.forward(x)`` passes hooks by."""
    class Direct(Net):
        def forward(self, x):
            for block in self.blocks:
                x = block.forward(x)
            return self.head(x.mean(1))

    model = net()
    model.__class__ = Direct
    fails(model, ValueError, 'Found, but left out:.*no container', X)


def test_a_part_that_runs_without_the_model():
    model = net()
    with TrajectoryRecorder(model) as recorder, torch.no_grad():
        model.blocks[0](X)
    with pytest.raises(RuntimeError, match='by itself.*: blocks.0'):
        recorder.nsi  # noqa: B018


@pytest.mark.parametrize('n', [1, 2, 5])
def test_frames_are_counted_back_to_their_clips(n):
    """Time is folded into the first dimension, as in video networks."""
    class Video(Net):
        def forward(self, clips):
            return super().forward(clips.flatten(0, 1)).view(
                *clips.shape[:2], -1).mean(1)

    model = net()
    model.__class__ = Video
    clips = torch.randn(n, 3, 6, 8)
    _, recorder = recorded(model, clips)
    assert recorder.nsi.shape == (n, 4)
    model.__class__ = Net
    _, frames = recorded(model, clips.flatten(0, 1))
    for key in ('x_norm', 'f_norm'):
        torch.testing.assert_close(
            recorder.record[key], frames.record[key].view(
                n, 3, 4).square().sum(1).sqrt(), rtol=1e-6, atol=0)


def test_functional_code_in_one_module_has_no_container():
    class Functional(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])

        def forward(self, x):
            for layer in self.layers:
                x = x + F.gelu(layer(x))
            return x

    steps = find_steps(Functional(), X)
    assert [s.left_out for s in steps] == ['no container'] * 3
    assert [s.ordinals for s in steps] == [(0, ), (1, ), (2, )]
