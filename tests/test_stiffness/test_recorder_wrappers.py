"""Copies, wrappers, compiled models, threads and stochastic depth."""

import copy
import pickle
import threading

import mmpretrain.models.backbones as mmpretrain_backbones
import pytest
import torch
import torch.nn as nn

from mmstepnet import insert_steps, remove_steps
from mmstepnet.models import StepResNetCIFAR
from mmstepnet.stiffness import TrajectoryRecorder
from tests.test_stiffness.reference import (
    IMAGES,
    TWO_STAGES,
    block_of,
    no_hooks,
    ready,
    recorded,
    small_torchvision,
)
from tests.utils import perturb


@pytest.mark.parametrize('build', [
    lambda: StepResNetCIFAR(20),
    small_torchvision,
    # Its modules drop paths and add the identity themselves.
    lambda: mmpretrain_backbones.SwinTransformer(
        arch=dict(embed_dims=12, depths=[3, 1], num_heads=[1, 2]),
        img_size=32, patch_size=2, window_size=4, pad_small_map=True,
        drop_path_rate=0.5, out_indices=(1, )),
    lambda: mmpretrain_backbones.ResNet(34, with_cp=True, **TWO_STAGES),
], ids=['ours', 'torchvision', 'Swin', 'checkpointed'])
def test_copies_are_the_model_alone(build):
    """An EMA copy, or a pickle, made while recording."""
    net = ready(build())
    parts = [(type(m), set(vars(m))) for m in net.modules()]
    x = IMAGES.clone().requires_grad_()
    wanted = outputs(net, x)
    with TrajectoryRecorder(net) as recorder:
        outputs(net, x)
        with TrajectoryRecorder(net) as second:
            outputs(net, x)
            ema = torch.optim.swa_utils.AveragedModel(net)
            copies = [copy.deepcopy(net), pickle.loads(pickle.dumps(net)),
                      ema.module]
        for twin in copies:
            assert [(type(m), set(vars(m)))
                    for m in twin.modules()] == parts
            torch.testing.assert_close(outputs(twin, x), wanted)
        torch.testing.assert_close(outputs(net, x), wanted)
    assert len(recorder) == 9 and len(second) == 3
    assert torch.equal(recorder.nsi[3:6], second.nsi)
    assert [(type(m), set(vars(m))) for m in net.modules()] == parts
    with TrajectoryRecorder(ema) as wrapped, torch.no_grad():
        for parameter in ema.parameters():
            parameter.mul_(1.5)
        ema(IMAGES)
    assert wrapped.blocks == recorder.blocks and len(wrapped) == 3
    assert not torch.allclose(wrapped.nsi, second.nsi)


def test_steps_come_and_go_between_recordings():
    net = ready(small_torchvision())
    recorder = TrajectoryRecorder(net)
    for change in (lambda net: None, insert_steps, remove_steps):
        change(net)
        with recorder, torch.no_grad():
            net(IMAGES)
    record = recorder.record
    assert len(recorder) == 9 and (record['step_mean'] == 1).all()
    for value in record.values():
        torch.testing.assert_close(value[:3], value[3:6], rtol=1e-5, atol=0)
        torch.testing.assert_close(value[:3], value[6:], rtol=1e-6, atol=0)


def outputs(net, x):
    """One tensor of all that a network returns."""
    out = net(x)
    out = out if isinstance(out, (list, tuple)) else (out, )
    return torch.cat([o.detach().flatten() for o in out])


def test_data_parallel_of_several_devices():
    parallel = nn.DataParallel(StepResNetCIFAR(20))
    parallel.device_ids = [0, 1]
    with pytest.raises(ValueError, match='DistributedDataParallel'):
        TrajectoryRecorder(parallel)


@pytest.mark.skipif(
    not hasattr(torch.compiler, 'set_stance'), reason='PyTorch before 2.6')
@pytest.mark.parametrize('compile_first', [True, False])
@pytest.mark.parametrize('in_place', [True, False])
def test_compiled_models_are_recorded_uncompiled(compile_first, in_place):
    model = ready(StepResNetCIFAR(20))
    recorder = recorded(model)
    calls = []

    def backend(graph, inputs):
        calls.append(graph)
        return graph.forward

    if in_place:
        model.compile(backend=backend)
        compiled = model
    else:
        compiled = torch.compile(model, backend=backend)
    with torch.no_grad():
        if compile_first:
            compiled(IMAGES)
            assert calls
        with TrajectoryRecorder(compiled) as of_compiled:
            compiled(IMAGES)
        assert torch.equal(of_compiled.nsi, recorder.nsi)
        calls.clear()
        compiled(IMAGES)
        # Back to compiled code, which need not be made again.
        assert calls or compile_first
    assert no_hooks(model)
    torch._dynamo.reset()


@pytest.mark.skipif(
    not hasattr(torch.compiler, 'set_stance'), reason='PyTorch before 2.6')
@pytest.mark.parametrize('order', [(0, 1), (1, 0)])
def test_compiled_code_returns_with_the_last_of_two_recorders(order):
    calls = []

    def backend(graph, inputs):
        calls.append(graph)
        return graph.forward

    models = [ready(StepResNetCIFAR(20)) for _ in range(2)]
    compiled = torch.compile(lambda x: x.sin() + 1, backend=backend)
    recorders = [TrajectoryRecorder(model) for model in models]
    for recorder in recorders:
        recorder.start()
    recorders[order[0]].stop()
    compiled(IMAGES)
    assert not calls
    recorders[order[1]].stop()
    compiled(IMAGES)
    assert calls
    torch._dynamo.reset()


def test_training_mode_with_stochastic_depth_measures_the_proposed_step():
    model = perturb(
        StepResNetCIFAR(20, attention=None, drop_path_rate=0.9,
                        norm_eval=True)).train()
    recorder = recorded(model)
    record = recorder.record
    assert (record['adaptive'] > 0).all()
    assert torch.equal(record['adaptive'], record['unit'])


@pytest.mark.parametrize('build', [
    lambda: mmpretrain_backbones.SwinTransformer(
        arch=dict(embed_dims=12, depths=[1, 3, 1, 1], num_heads=[1, 2, 2, 2]),
        img_size=32, patch_size=2, window_size=4, pad_small_map=True,
        drop_path_rate=0.5),
    lambda: mmpretrain_backbones.ConvNeXt(
        arch=dict(depths=[3, 1, 1, 1], channels=[8] * 4),
        drop_path_rate=0.5),
    lambda: mmpretrain_backbones.VisionTransformer(
        arch=dict(embed_dims=12, num_layers=3, num_heads=2,
                  feedforward_channels=24), img_size=32, patch_size=8,
        drop_path_rate=0.5),
])
def test_transformers_propose_steps_that_are_dropped(build):
    """What survives is scaled by one over the share that is kept."""
    model = perturb(build())
    model.train()
    with TrajectoryRecorder(model) as recorder, torch.no_grad():
        model(IMAGES.repeat(6, 1, 1, 1))
    proposed = recorder.record['adaptive'].double()
    returned = recorder.record['returned'].double()
    assert (proposed > 0).all() and (returned == 0).any()
    kept = 1 - torch.tensor([
        next((m.drop_prob for m in model.get_submodule(name).modules()
              if type(m).__name__ == 'DropPath'), 0)
        for name in map(block_of, recorder.blocks)
    ], dtype=torch.float64)
    survived = returned > 0
    assert survived.any(0).all()
    torch.testing.assert_close(
        returned[survived], (proposed / kept)[survived], rtol=1e-4, atol=0)


def test_threads_do_not_disturb_other_models():
    model = ready(StepResNetCIFAR(20))
    other = copy.deepcopy(model)
    with TrajectoryRecorder(model) as recorder, torch.no_grad():
        thread = threading.Thread(target=other, args=(IMAGES, ))
        thread.start()
        model(IMAGES)
        thread.join()
    assert len(recorder) == 3


def test_backward_after_the_recorder_has_stopped():
    """The second run of a checkpointed block that is no block of ours."""
    model = mmpretrain_backbones.Res2Net(
        depth=50, base_width=4, with_cp=True)
    block = model.layer1[1]
    forward = type(block).forward

    def gradients():
        model.zero_grad()
        model(IMAGES)[-1].square().sum().backward()
        return [p.grad.clone() for p in model.parameters()]

    model.train()
    wanted = gradients()
    recorder = TrajectoryRecorder(model)
    recorder.start(once=True)
    found = gradients()
    assert len(recorder) == len(IMAGES)
    assert all(map(torch.equal, found, wanted))
    assert block.with_cp and type(block).forward is forward
