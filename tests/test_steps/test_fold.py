"""Folded inference against the model it was folded from, and exports."""

import importlib.util
import warnings
from functools import partial

import pytest
import torch
import torch.nn as nn

import mmstepnet
from mmstepnet import models
from mmstepnet.attentions import FoldedStepNet
from mmstepnet.models import (
    StepNet,
    StepResNetCIFAR,
    StepVisionTransformer,
)
from tests.utils import TORCH_21, not_on_torch_21, perturb

StepResNet = partial(models.StepResNet, host='mmpretrain')
MODELS = {
    'basic': dict(depth=18),
    'bottleneck': dict(depth=50),
    'preact': dict(depth=50, preact=True),
    'deep stem': dict(depth=18, deep_stem=True, avg_down=True),
    'se': dict(depth=18, attention=dict(type='SE')),
    'iebn': dict(depth=18, norm_cfg=dict(type='mmstepnet.IEBN')),
    'group norm': dict(depth=18, norm_cfg=dict(type='GN', num_groups=4)),
    'no norm in the gate': dict(depth=18, attention=dict(type='OursNoNorm')),
    **{
        inputs: dict(depth=18, attention=dict(
            type='StepNet', inputs=inputs, init_step=1.0))
        for inputs in ('both', 'x', 'x_next', 'difference')
    },
}


def count(model, *types):
    return sum(isinstance(module, types) for module in model.modules())


@pytest.mark.parametrize('name', MODELS)
def test_output_stays(name):
    model = perturb(StepResNet(**MODELS[name])).double().eval()
    x = torch.randn(2, 3, 48, 40).double()
    folded = mmstepnet.fold(model)
    with torch.no_grad():
        for got, expected in zip(folded(x), model(x)):
            torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)
    assert not folded.training


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_it_says_where_it_is_not_exact(dtype):
    model = perturb(StepResNet(18)).to(dtype).eval()
    x = torch.randn(2, 3, 48, 40, dtype=dtype)
    with warnings.catch_warnings(record=True) as said:
        folded = mmstepnet.fold(model)
    assert [('not exact in torch.bfloat16' in str(w.message))
            for w in said] == [True] * (dtype is torch.bfloat16)
    with torch.no_grad():
        for got, wanted in zip(folded(x), model(x)):
            worst = (got - wanted).abs().max() / wanted.abs().max()
            assert worst < 1e-5 or dtype is torch.bfloat16


def test_what_is_folded():
    model = perturb(StepResNet(50)).eval()
    folded = mmstepnet.fold(model)
    assert count(folded, nn.BatchNorm2d, nn.BatchNorm1d) == 0
    assert count(folded, FoldedStepNet) == 12
    for attention in folded.modules():
        if isinstance(attention, FoldedStepNet):
            numbers = sum(p.numel() for p in attention.parameters())
            assert numbers == 3 * attention.channels
    # The original is left as it was; a norm before its convolution stays.
    assert count(model, nn.BatchNorm2d) == 53
    preact = StepResNet(50, preact=True)
    assert count(mmstepnet.fold(preact), nn.BatchNorm2d) == 16 + 1


def test_other_adaptors_stay():
    """A subclass may compute anything, and statistics may be missing."""
    class Twice(StepNet):
        def forward(self, *means):
            return super().forward(*means).clamp(max=0.5) * 2

    x = torch.rand(2, 3, 32, 32)
    for change in (lambda block: setattr(block.step, 'attention',
                                         Twice(block.step.attention.channels)),
                   lambda block: block.step.attention.bn.__dict__[
                       '_buffers'].update(running_mean=None,
                                          running_var=None)):
        model = perturb(StepResNet(18)).eval()
        for stage in (model.layer1, model.layer4):
            change(stage[1])
        folded = mmstepnet.fold(model)
        assert count(folded, FoldedStepNet) == count(model, StepNet) - 2
        for got, wanted in zip(folded(x), model(x)):
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


def test_training_model_is_folded_with_its_running_statistics():
    model = perturb(StepResNetCIFAR(20)).train()
    x = torch.randn(2, 3, 32, 32)
    folded = mmstepnet.fold(model)
    assert model.training
    with torch.no_grad():
        torch.testing.assert_close(
            folded(x)[0], model.eval()(x)[0], rtol=1e-4, atol=1e-5)
    # Once more changes nothing.
    twice = mmstepnet.fold(folded)
    assert torch.equal(twice(x)[0], folded(x)[0])


def test_vision_transformer():
    model = perturb(StepVisionTransformer(
        'deit-tiny', img_size=32, patch_size=8)).eval()
    x = torch.randn(2, 3, 32, 32)
    folded = mmstepnet.fold(model)
    assert count(folded, StepNet) == 0 < count(model, StepNet)
    torch.testing.assert_close(folded(x)[0], model(x)[0], rtol=1e-4,
                               atol=1e-5)


def test_refuses_models_of_others():
    with pytest.raises(TypeError, match='with residual steps.*got Conv2d'):
        mmstepnet.fold(nn.Conv2d(3, 3, 1))


@pytest.mark.parametrize('folded', [False, True])
@pytest.mark.parametrize('dynamo', [
    False,
    pytest.param(
        True, marks=not_on_torch_21('exports to ONNX by tracing alone'))
])
def test_onnx(folded, dynamo, tmp_path):
    onnxruntime = pytest.importorskip(
        'onnxruntime', reason='needs onnxruntime')
    pytest.importorskip('onnx', reason='needs onnx')
    if dynamo and importlib.util.find_spec('onnxscript') is None:
        pytest.skip('needs onnxscript')
    model = perturb(StepResNetCIFAR(20)).eval()
    if folded:
        model = mmstepnet.fold(model)
    x = torch.randn(2, 3, 32, 32)
    path = str(tmp_path / 'model.onnx')
    # PyTorch 2.1 writes a ReduceMean that version 18 does not have.
    exporter = dict(opset_version=17) if TORCH_21 else dict(
        opset_version=18, dynamo=dynamo)
    torch.onnx.export(model, (x, ), path, **exporter)
    session = onnxruntime.InferenceSession(
        path, providers=['CPUExecutionProvider'])
    other = torch.randn(2, 3, 32, 32)
    got, = session.run(None, {session.get_inputs()[0].name: other.numpy()})
    torch.testing.assert_close(
        torch.from_numpy(got), model(other)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize('folded', [False, True])
def test_export(folded):
    model = perturb(StepResNetCIFAR(20)).eval()
    if folded:
        model = mmstepnet.fold(model)
    x, other = (torch.randn(2, 3, 32, 32) for _ in range(2))
    exported = torch.export.export(model, (x, )).module()
    torch.testing.assert_close(exported(other)[0], model(other)[0])
