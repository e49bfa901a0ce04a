"""What is recorded of a pass, whatever it is and stands around the model."""

import functools
import gc
import pickle
from collections import OrderedDict
from contextlib import nullcontext

import numpy as np
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

from mmstepnet import insert_steps, measure_stiffness, remove_steps
from mmstepnet.steps import fused
from mmstepnet.steps.tail import dispatch, scaled_aten
from mmstepnet.stiffness import TrajectoryRecorder, total_neural_stiffness
from mmstepnet.stiffness.measurement import hidden
from tests.small_networks import inputs, network
from tests.test_stiffness.reference import (
    IMAGES,
    MAPS,
    Net,
    Residual,
    Windows,
    assert_recorded,
    post_activation,
    ready,
    recorded,
    residual_step,
    row,
    small_resnet,
)
from tests.utils import (
    TORCH_21,
    Adds,
    no_hooks,
    not_on_torch_21,
    perturb,
    perturb_gates,
    seeded,
)

X = seeded(4, 15, 8)

ELEMENTWISE = sorted(
    set(nn.modules.activation.__all__)
    - {
        'GLU',
        'MultiheadAttention',
        'Softmin',
        'Softmax',
        'Softmax2d',
        'LogSoftmax',
        'Threshold',
    }
)


@pytest.mark.parametrize(
    'last',
    [
        pytest.param(None, id='none'),
        pytest.param(nn.ReLU(inplace=True), id='ReLU in place'),
        pytest.param(nn.functional.relu, id='a function'),
        pytest.param(torch.Tensor.relu_, id='a method in place'),
        pytest.param(
            lambda x: nn.functional.prelu(x, torch.tensor([0.25])),
            id='PReLU by a function',
        ),
        *(pytest.param(getattr(nn, name)(), id=name) for name in ELEMENTWISE),
    ],
)
@pytest.mark.parametrize('mode', [torch.no_grad, torch.inference_mode])
def test_an_activation_is_no_part_of_the_step(last, mode):
    model = ready(row(lambda: Residual(last)))
    with TrajectoryRecorder(model) as recorder, mode():
        model(MAPS)
    assert recorder.blocks == ['1', '2']
    assert_recorded(recorder, model, residual_step, MAPS)


ALL = [f'backbone.layer{stage}.{k}' for stage in (1, 2) for k in (1, 2)]


@pytest.mark.parametrize(
    'blocks, names',
    [
        pytest.param(None, ALL, id='all'),
        pytest.param(Residual, [*ALL, 'head.1'], id='a class'),
        *(
            (blocks, ALL[2:])
            for blocks in (
                'layer2',
                'layer2.[12]',
                ['backbone.layer2.1', 'layer2.2'],
            )
        ),
    ],
)
def test_selections(blocks, names):
    """The stage's first is left out, not the first of the selection."""
    detector = nn.Sequential(
        OrderedDict(
            backbone=nn.Sequential(
                OrderedDict(layer1=row(Residual), layer2=row(Residual))
            ),
            head=row(Residual, 2),
        )
    )
    recorder = recorded(detector, MAPS, blocks=blocks)
    assert recorder.blocks == names
    assert len(recorder.stages.unique()) == len(
        {name.rpartition('.')[0] for name in names}
    )


def test_large_maps_keep_their_digits():
    """Millions of values a sample, their number odd."""
    model = ready(row(lambda: Residual(nn.ReLU()), 2))
    maps = 1 + torch.rand(1, 8, 723, 517)
    assert_recorded(
        recorded(model, maps), model, residual_step, maps, rtol=1e-6
    )


@pytest.mark.parametrize(
    'dtype',
    [
        torch.bfloat16,
        pytest.param(
            torch.float16,
            marks=not_on_torch_21('has no float16 autocast on CPU'),
        ),
    ],
)
def test_amp_is_measured_in_float32(dtype):
    """The readings are those of the half-precision features, not coarser."""
    model = ready(small_resnet())
    with torch.autocast('cpu', dtype), torch.no_grad():
        wanted = model(IMAGES)
        with TrajectoryRecorder(model) as recorder:
            assert torch.equal(model(IMAGES), wanted)
        assert_recorded(recorder, model, post_activation(), IMAGES)


def modes():
    return torch.utils._python_dispatch._get_current_dispatch_mode_stack()


@pytest.mark.parametrize('error', [KeyError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize('fail_at', [0, 2])
def test_an_interrupted_pass_adds_nothing(fail_at, error):
    """Also where the recorder goes on, and no mode stays behind."""
    model = Net()
    clean = recorded(model, MAPS)
    model.error = error
    recorder = TrajectoryRecorder(model)
    recorder.start()
    with torch.no_grad():
        for stops in (False, True):
            for model.fail_at in (None, fail_at, None):
                try:
                    model(MAPS)
                except error:
                    assert model.fail_at == fail_at
                    if stops:
                        recorder.stop()
                        assert no_hooks(model) and not modes()
                        recorder.start()
    recorder.stop()
    assert no_hooks(model) and not modes()
    assert torch.equal(recorder.nsi, clean.nsi.repeat(4, 1))


def test_starting_stopping_and_clearing():
    model = ready(small_resnet())
    recorder = TrajectoryRecorder(model)
    recorder.start()
    with torch.no_grad():
        model(IMAGES[:1])
        recorder.stop()
        recorder.stop()
        model(IMAGES)
        recorder.start(once=True)
        model(IMAGES[1:])
        model(IMAGES)
        assert no_hooks(model)
        recorder.start(once=True)
        with pytest.raises(TypeError):
            model(None)
        assert no_hooks(model)
    assert len(recorder) == 3
    whole = recorded(model, IMAGES)
    torch.testing.assert_close(recorder.nsi, whole.nsi, rtol=1e-5, atol=0)
    found = recorder.trajectories(split='val', epoch=3)
    for name, value in recorder.record.items():
        np.testing.assert_array_equal(getattr(found, name), value)
    assert found.settings == dict(
        model='ResNet',
        split='val',
        epoch=3,
        reading='adaptive',
        dataset_size=3,
    )
    recorder.clear()
    # Batch by batch, as for a metric: each sample is seen once.
    total = []
    with recorder, torch.no_grad():
        for image in IMAGES.split(1):
            model(image)
            total += total_neural_stiffness(recorder.nsi, recorder.stages)
            recorder.clear()
    torch.testing.assert_close(
        torch.stack(total),
        total_neural_stiffness(whole.nsi, whole.stages),
        rtol=1e-5,
        atol=0,
    )
    # Steps come and go between recordings.
    for change in (lambda model: None, insert_steps, remove_steps):
        change(model)
        with recorder, torch.no_grad():
            model(IMAGES)
    for value in recorder.record.values():
        torch.testing.assert_close(
            value[3:], value[:3].repeat(2, 1), rtol=1e-5, atol=0
        )


def test_a_block_that_runs_several_times_is_as_many_steps():
    """A shared block is measured as copies of it are, one after the other."""
    shared, copies = Net([0] * 4), Net()
    for block in copies.blocks:
        block.load_state_dict(shared.blocks[0].state_dict())
    first, second = (recorded(model, MAPS) for model in (shared, copies))
    assert first.blocks == ['blocks.0#2', 'blocks.0#3', 'blocks.0#4']
    assert first.excluded == ['blocks.0'] and first.nsi.min() > 0
    assert torch.equal(first.nsi, second.nsi)


def test_blocks_in_another_order_keep_their_columns():
    model = Net()
    with TrajectoryRecorder(model) as recorder, torch.no_grad():
        model(MAPS)
        model.order = [0, 2, 1, 3]
        model(MAPS)
    assert torch.equal(
        recorder.nsi[len(MAPS) :], recorded(model, MAPS).nsi[:, [1, 0, 2]]
    )


class Tokens(nn.Module):
    """Its states are (L, N, C) where ``first`` is False, else (N, L, C)."""

    def __init__(self, first=False):
        super().__init__()
        self.first, self.embed = first, nn.Embedding(9, 8)
        self.blocks = row(lambda: Adds(nn.Linear(8, 8)), 4)

    def forward(self, x):
        x = x if x.is_floating_point() else self.embed(x)
        return self.blocks(x if self.first else x.transpose(0, 1))


@pytest.mark.parametrize(
    'make, x',
    [
        pytest.param(Windows, seeded(2, 8, 8, 8), id='windows'),
        *(
            pytest.param(
                functools.partial(Tokens, first), x, id=f'{kind}, {order}'
            )
            for first, order in (
                (False, 'tokens first'),
                (True, 'samples first'),
            )
            for kind, x in (
                ('vectors', X),
                ('words', torch.arange(64).view(4, 16) % 9),
            )
        ),
    ],
)
def test_readings_of_a_batch_are_those_of_each_sample(make, x):
    """Its tokens may come first; its windows are counted back to it."""
    model = make()
    alone, together = recorded(model, *x.split(1)), recorded(model, x)
    assert len(together) == len(x)
    torch.testing.assert_close(
        together.record, alone.record, rtol=1e-5, atol=0
    )


@pytest.mark.parametrize('first', [True, False])
def test_as_many_tokens_as_samples(first):
    """Another number of samples says which is which, before or alone."""
    model = Tokens(first)
    with TrajectoryRecorder(model) as recorder, torch.no_grad():
        with pytest.raises(ValueError, match='axis of 4 samples is not clear'):
            model(X[:, :4])
        model(X[:3, :4])
        model(X[:, :4])
    alone = recorded(model, *X[[0, 1, 2, 0, 1, 2, 3], :4].split(1))
    torch.testing.assert_close(recorder.nsi, alone.nsi, rtol=1e-5, atol=0)


def test_bad_features():
    """A state of norm 0 that stays has index 0."""
    model = row(lambda: Residual(nn.ReLU()), 2)
    for bias in (b.bias for b in model.modules() if hasattr(b, 'bias')):
        nn.init.zeros_(bias)
    with TrajectoryRecorder(model) as recorder, torch.no_grad():
        model(torch.zeros(2, 8, 5, 5))
        assert (recorder.nsi == 0).all()
        broken = MAPS.clone()
        broken[1, 0, 0, 0] = np.nan
        with pytest.raises(ValueError, match='sample 3 has no finite index'):
            model(broken)
        model[1].f[2].bias.fill_(1)
        with pytest.raises(ValueError, match='state of norm 0 changes'):
            model(torch.zeros(2, 8, 5, 5))
    assert len(recorder) == 2


def test_features_are_not_kept():
    def maps():
        gc.collect()
        return {
            id(t)
            for t in gc.get_objects()
            if type(t) is torch.Tensor and t.dim() == 4 and t.shape[0] == 3
        }

    model = ready(small_resnet())
    before = maps()  # other tests may have left some
    with TrajectoryRecorder(model), torch.no_grad():
        for _ in range(3):
            model(IMAGES)
        assert maps() <= before


def test_a_network_is_measured_in_evaluation_mode():
    """By the norms' running statistics, and it trains on afterwards."""
    model = ready(small_resnet())
    with TrajectoryRecorder(model) as recorder, torch.no_grad():
        model(IMAGES)
    expected = recorder.trajectories().unit
    model.train()
    np.testing.assert_array_equal(
        measure_stiffness(model, [IMAGES]).unit, expected
    )
    assert all(m.training for m in model.modules())


def test_of_several_passes_the_first_one_counts():
    """If somebody is told of it, as in augmentation at test time."""

    class Flipped(nn.Module):
        def __init__(self, net):
            super().__init__()
            self.net = net

        def forward(self, x):
            return self.net(x) + self.net(x.flip(-1))

    model = ready(small_resnet())
    told = []
    with (
        TrajectoryRecorder(
            Flipped(model), on_repeated=lambda: told.append(1)
        ) as recorder,
        torch.no_grad(),
    ):
        recorder.model(IMAGES)
    assert told == [1]
    np.testing.assert_array_equal(
        recorder.trajectories().unit, measure_stiffness(model, [IMAGES]).unit
    )


def test_training_after_a_measurement():
    """Tables that a module makes on demand are no inference tensors."""

    class Positions(Residual):
        table = None

        def forward(self, x):
            if self.table is None:
                self.table = torch.ones(8, 1, 1)
            return super().forward(x * self.table)

    model = row(Positions).train()
    measure_stiffness(model, [MAPS])
    assert all(m.training for m in model.modules())
    model(MAPS).sum().backward()
    assert model[0].f[0].weight.grad.any()


@pytest.mark.skipif(
    not hasattr(torch.compiler, 'set_stance'), reason='PyTorch before 2.6'
)
def test_compiled_models_are_recorded_uncompiled():
    """Until the last recorder stops."""

    def backend(graph, inputs):
        calls.append(graph)
        return graph.forward

    calls, model = [], perturb(Net()).eval()
    plain = recorded(model, MAPS)
    compiled = torch.compile(model, backend=backend)
    with torch.no_grad():
        compiled(MAPS)
        made = len(calls)
        with TrajectoryRecorder(compiled) as recorder:
            compiled(MAPS)
            with TrajectoryRecorder(Net()):
                pass
            torch.compile(lambda x: x.sin() + 1, backend=backend)(MAPS)
            assert made == len(calls) > 0
        torch.compile(lambda x: x.cos() + 1, backend=backend)(MAPS)
        assert len(calls) > made
    assert torch.equal(recorder.nsi, plain.nsi) and no_hooks(model)
    torch._dynamo.reset()


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


def lora(model):
    peft = pytest.importorskip('peft')
    cfg = peft.LoraConfig(target_modules=['f.0', 'f.2'])
    return peft.inject_adapter_in_model(cfg, model)


def fsdp1(block):
    if TORCH_21:
        pytest.skip('PyTorch 2.1 has no FSDP on CPUs')
    return torch.distributed.fsdp.FullyShardedDataParallel(
        block, device_id=torch.device('cpu')
    )


def fsdp2(block):
    dist = torch.distributed
    if not hasattr(dist.fsdp, 'fully_shard'):
        pytest.skip('PyTorch before 2.6')
    return dist.fsdp.fully_shard(
        block, mesh=dist.device_mesh.init_device_mesh('cpu', (1,))
    )


def computes_inside(model):
    model.__class__ = Inside
    return model


CHECKPOINTS = {
    kind: functools.partial(checkpoint, use_reentrant=kind == 'reentrant')
    for kind in ('reentrant', 'other')
}
SITUATIONS = {
    'as it is': lambda model: model,
    '_orig_mod': wrapped(Wrapper),
    'checkpoint_wrapper': wrapped(checkpoint_wrapper),
    **{
        f'{kind} checkpoint of blocks': wrapped(
            lambda block, run=run: Wrapper(block, run)
        )
        for kind, run in CHECKPOINTS.items()
    },
    **{
        f'{kind} checkpoint of all': (
            lambda model, run=run: Wrapper(model, run)
        )
        for kind, run in CHECKPOINTS.items()
    },
    'peft': lora,
    'pickle': lambda model: pickle.loads(pickle.dumps(model)),
    'AveragedModel': torch.optim.swa_utils.AveragedModel,
    'DDP': nn.parallel.DistributedDataParallel,
    'FSDP1': wrapped(fsdp1),
    'FSDP2': wrapped(fsdp2),
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
    return [
        out,
        *(t.grad for t in (x, *model.parameters()) if t.grad is not None),
    ]


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
    for contexts in (
        (recorder, recorder),
        (recorder, NOTHING),
        (NOTHING, recorder),
    ):
        found = passed(model, *contexts)
        assert all(map(torch.equal, found, wanted))
    assert recorder.blocks == ['blocks.1', 'blocks.2', 'blocks.3']
    assert recorder.excluded == ['blocks.0']
    torch.testing.assert_close(
        recorder.nsi, plain().repeat(2, 1), rtol=1e-6, atol=0
    )


def test_other_dispatch_modes_see_the_model_alone():
    model, counts = net(), []
    for recorder in (NOTHING, TrajectoryRecorder(model)):
        with (
            Counting() as mode,
            FlopCounterMode(display=False) as flops,
            recorder,
            torch.no_grad(),
        ):
            model(MAPS)
        counts.append((mode.seen, flops.get_total_flops()))
    assert counts[0] == counts[1] and counts[0][1] > 0


class Unseen:
    """Passes over maps that no mode sees, as kernels of Triton are."""

    @staticmethod
    def forward(*args):
        with hidden():
            return scaled_aten.forward(*args)


@pytest.mark.parametrize('kind', ['reference', 'by hand', 'unseen'])
def test_how_a_step_is_computed_changes_no_recording(kind, monkeypatch):
    model = network('tokens')
    insert_steps(model, example=inputs('tokens'), blocks=['0', '2'])
    perturb_gates(model)
    with fused(False), TrajectoryRecorder(model) as expected:
        model(inputs('tokens'))
    if kind == 'unseen':
        monkeypatch.setattr(dispatch, 'passes_for', lambda *_: Unseen)
    with fused(kind != 'reference'), TrajectoryRecorder(model) as recorder:
        model(inputs('tokens'))
    assert recorder.steps == expected.steps
    assert len(recorder.steps) == 6
    for name, values in recorder.record.items():
        torch.testing.assert_close(values, expected.record[name])
