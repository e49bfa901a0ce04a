"""What a pass is: checkpointing, precision, interruptions, bad features."""

import contextlib
import functools

import mmpretrain.models.backbones as mmpretrain_backbones
import pytest
import torch
import torch.nn as nn
import torch.utils.checkpoint as cp

from mmstepnet.models import StepResNetCIFAR
from mmstepnet.stiffness import TrajectoryRecorder
from mmstepnet.stiffness import recorder as recording
from mmstepnet.stiffness.step_norms import StepMeasurement
from tests.test_stiffness.reference import (
    IMAGES,
    TWO_STAGES,
    Residual,
    blocks_in_a_row,
    no_hooks,
    ready,
    recorded,
    size,
    small_torchvision,
)
from tests.utils import not_on_torch_21, perturb


@pytest.mark.parametrize('build', [
    lambda: StepResNetCIFAR(20, with_cp=True),
    lambda: mmpretrain_backbones.SEResNet(50, with_cp=True, **TWO_STAGES),
    lambda: mmpretrain_backbones.ResNet(18, with_cp=True, **TWO_STAGES),
])
def test_with_cp_counts_each_sample_once(build):
    model = perturb(build())
    model.eval()  # the statistics of BN stay
    images = IMAGES.clone().requires_grad_()
    with TrajectoryRecorder(model) as recorder:
        for _ in range(2):
            sum(out.sum() for out in model(images)).backward()
    assert len(recorder) == 6
    plain = recorded(model)
    torch.testing.assert_close(
        recorder.nsi, plain.nsi.repeat(2, 1), rtol=1e-6, atol=0)


@pytest.mark.parametrize('reentrant', [False, True])
@pytest.mark.parametrize('build, blocks', [
    (lambda: StepResNetCIFAR(20), None),
    (small_torchvision, None),
    (lambda: blocks_in_a_row(lambda: Residual(nn.ReLU())), 'body.*'),
])
def test_a_checkpoint_around_blocks_counts_each_sample_once(
        build, blocks, reentrant):
    model = ready(build())
    plain = recorded(model, blocks=blocks)
    with TrajectoryRecorder(model, blocks) as recorder:
        out = cp.checkpoint(model, IMAGES.clone().requires_grad_(),
                            use_reentrant=reentrant)
        (out[-1] if isinstance(out, tuple) else out).sum().backward()
    assert len(recorder) == len(IMAGES)
    torch.testing.assert_close(recorder.nsi, plain.nsi, rtol=1e-6, atol=0)


@pytest.mark.parametrize('ours', [True, False])
@pytest.mark.parametrize('recorded', [(True, False), (False, True)])
def test_a_checkpointed_pass_goes_back_the_way_it_came(recorded, ours):
    """Whoever observes, or no longer does, at the time of backward.

    PyTorch's own checkpoint compares what both runs save.
    """
    model = ready(StepResNetCIFAR(20, with_cp=ours)).double()
    run = model if ours else functools.partial(
        cp.checkpoint, model, use_reentrant=False)
    gradients = []
    for forward, backward in ((False, False), recorded):
        images = IMAGES.double().requires_grad_()
        recorder = TrajectoryRecorder(model)
        if forward:
            recorder.start()
        out = run(images)[0].square().sum()
        recorder.stop()
        if backward:
            recorder.start()
        out.backward()
        recorder.stop()
        gradients.append(images.grad)
        assert len(recorder) == len(IMAGES) * forward
    torch.testing.assert_close(*gradients)


def test_recording_changes_neither_outputs_nor_gradients():
    model = ready(StepResNetCIFAR(20)).double()
    results = []
    for record in (False, True):
        model.zero_grad()
        x = IMAGES.double().requires_grad_()
        if record:
            with TrajectoryRecorder(model):
                out, = model(x)
        else:
            out, = model(x)
        out.square().sum().backward()
        results.append([out, x.grad, *(p.grad for p in model.parameters())])
    for a, b in zip(*results):
        # Another path may run without observers: allow its rounding.
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize('dtype', [
    torch.bfloat16,
    pytest.param(
        torch.float16,
        marks=not_on_torch_21('has no float16 autocast on CPU'))
])
@pytest.mark.parametrize(
    'build', [lambda: StepResNetCIFAR(20), small_torchvision])
def test_amp_measures_in_float32(dtype, build):
    """The readings are those of the half-precision features, not coarser."""
    model = ready(build())
    kept = []
    full = recorded(model)
    with TrajectoryRecorder(model) as recorder:
        modules = dict(model.named_modules())
        handles = [
            modules[name].register_forward_pre_hook(
                lambda m, args: kept.append(size(args[0])))
            for name in full.blocks
        ]
        with torch.autocast('cpu', dtype), torch.no_grad():
            model(IMAGES)
    for handle in handles:
        handle.remove()
    assert recorder.record['x_norm'].dtype == torch.float32
    torch.testing.assert_close(
        recorder.record['x_norm'].double(),
        torch.stack(kept, 1),
        rtol=1e-6,
        atol=0)
    torch.testing.assert_close(recorder.nsi, full.nsi, rtol=0.1, atol=0.02)


def test_channels_last_and_double():
    model = ready(StepResNetCIFAR(20))
    with TrajectoryRecorder(model) as recorder, torch.no_grad():
        model(IMAGES)
        model.to(memory_format=torch.channels_last)
        model(IMAGES.contiguous(memory_format=torch.channels_last))
        model.double()
        model(IMAGES.double())
    for value in recorder.record.values():
        torch.testing.assert_close(value[:3], value[3:6], rtol=1e-4, atol=0)
        torch.testing.assert_close(value[:3], value[6:], rtol=1e-4, atol=0)


class Failing(nn.Module):

    def __init__(self, model):
        super().__init__()
        self.net = model
        self.fail_at = None

    def forward(self, x):
        x = self.net.conv1(x)
        for k, stage in enumerate(
                (self.net.layer1, self.net.layer2, self.net.layer3,
                 lambda x: x)):
            if self.fail_at == k:
                raise KeyError('lost')
            x = stage(x)
        return x


@pytest.mark.parametrize('fail_at', [0, 1, 2, 3])
def test_an_interrupted_pass_adds_nothing(fail_at):
    model = Failing(perturb(StepResNetCIFAR(20))).eval()
    clean = recorded(model)
    with TrajectoryRecorder(model) as recorder, torch.no_grad():
        model(IMAGES[:2])
        model.fail_at = fail_at
        with pytest.raises(KeyError):
            model(IMAGES)
        model.fail_at = None
        model(IMAGES[2:])
    torch.testing.assert_close(recorder.nsi, clean.nsi, rtol=1e-5, atol=0)
    model.fail_at = fail_at
    with pytest.raises(KeyError), TrajectoryRecorder(model):
        model(IMAGES)
    assert no_hooks(model)


def test_an_error_inside_a_block():
    model = ready(StepResNetCIFAR(20))
    handle = model.layer2[1].conv2.register_forward_hook(
        lambda *a: (_ for _ in ()).throw(MemoryError()))
    recorder = TrajectoryRecorder(model)
    with recorder, torch.no_grad():
        with pytest.raises(MemoryError):
            model(IMAGES)
        handle.remove()
        model(IMAGES)
    assert len(recorder) == 3 and no_hooks(model)


class Skipping(nn.Module):
    """Stochastic depth that skips whole blocks, or repeats one."""

    def __init__(self, order):
        super().__init__()
        self.blocks = nn.ModuleList([Residual(None) for _ in range(4)])
        self.order = order

    def forward(self, x):
        for k in self.order:
            x = self.blocks[k](x)
        return x


@pytest.mark.parametrize('order, message', [
    ([0, 1, 3], 'other steps than the first one: blocks.2 did not run'),
    ([0, 1, 2, 2, 3], 'blocks.2#2 ran as well'),
])
def test_passes_that_run_other_blocks_are_refused(order, message):
    model = Skipping([0, 1, 2, 3])
    with TrajectoryRecorder(model) as recorder, torch.no_grad():
        model(torch.randn(2, 8, 5, 5))
        model.order = order
        with pytest.raises(RuntimeError, match=message):
            model(torch.randn(2, 8, 5, 5))
    assert len(recorder) == 2


def test_later_passes_measure_only_what_is_recorded(monkeypatch):
    measured = []
    monkeypatch.setattr(recording, 'StepMeasurement', lambda x: (
        measured.append(x), StepMeasurement(x))[1])
    model = Skipping(range(4)).eval()
    with TrajectoryRecorder(model) as recorder, torch.no_grad():
        for count in (4, 3):
            model(torch.ones(2, 8, 5, 5))
            assert len(measured) == count
            measured.clear()
        recorder.clear()
        model(torch.ones(2, 8, 5, 5))
    assert len(measured) == 4 and recorder.nsi.shape == (2, 3)


def test_steps_that_other_modules_add_are_other_steps():
    class Moving(Residual):
        def forward(self, x):
            return self.inner(x) if moved else super().forward(x)

    model = Skipping(range(3)).eval()
    for k in range(3):
        model.blocks[k] = Moving(None)
        model.blocks[k].inner = Residual(None)
    with TrajectoryRecorder(model) as recorder, torch.no_grad():
        for moved in (False, True):
            with pytest.raises(RuntimeError, match='other steps') if (
                    moved) else contextlib.nullcontext():
                model(torch.randn(2, 8, 5, 5))
    assert len(recorder) == 2


def test_a_block_that_runs_several_times_is_as_many_steps():
    """A shared block is measured as copies of it are, one after the other."""
    shared, copies = Skipping([0] * 4).eval(), Skipping(range(4)).eval()
    for block in copies.blocks:
        block.load_state_dict(shared.blocks[0].state_dict())
    x = torch.randn(2, 8, 5, 5)
    records = []
    for model in (shared, copies):
        recorder = recorded(model, x)
        records.append(recorder)
    assert records[0].blocks == ['blocks.0#2', 'blocks.0#3', 'blocks.0#4']
    assert records[0].excluded == ['blocks.0']
    assert records[0].nsi.min() > 0
    assert torch.equal(records[0].nsi, records[1].nsi)
