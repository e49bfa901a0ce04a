"""Blocks of no known class, against an evaluation that keeps features."""

import mmdet.models.backbones as mmdet_backbones
import pytest
import torch
import torch.nn as nn
import torchvision

from mmstepnet.models import StepResNetCIFAR
from mmstepnet.stiffness import TrajectoryRecorder
from tests.test_stiffness.reference import (
    IMAGES,
    TWO_STAGES,
    Residual,
    keep_features,
    no_hooks,
    ready,
    relu,
    unknown_blocks,
)


class AddedInPlace(Residual):
    """Its last activation is part of f, and the sum is the same tensor."""

    def branch(self, x):
        return relu(super().branch(x))

    def forward(self, x):
        out = nn.functional.relu(self.second(self.middle(self.first(x))))
        out += x
        return out


class AsInTransformers(Residual):
    """Called by keyword; returns its state among other things."""

    def forward(self, state, mask=None):
        return super().forward(state), mask


class Calls(nn.Sequential):
    """Calls its blocks so."""

    def forward(self, x):
        for block in self:
            x, _ = block(state=x, mask=None)
        return x


@pytest.mark.parametrize('mode', [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize('last, same', [
    (None, lambda x: x),
    (nn.ReLU(inplace=True), relu),
    (nn.functional.relu, relu),
    (torch.relu, relu),
    (torch.Tensor.relu_, relu),
    (nn.GELU(), lambda x: x * (1 + (x / 2**0.5).erf()) / 2),
    (nn.functional.gelu, lambda x: x * (1 + (x / 2**0.5).erf()) / 2),
    (nn.functional.silu, lambda x: x / (1 + (-x).exp())),
    (nn.LeakyReLU(0.25), lambda x: torch.maximum(x, 0.25 * x)),
    (lambda x: nn.functional.prelu(x, torch.tensor([0.25])),
     lambda x: torch.maximum(x, 0.25 * x)),
    (torch.Tensor.tanh, lambda x: 1 - 2 / ((2 * x).exp() + 1)),
    (nn.ReLU6(), lambda x: x.clamp(0, 6)),
    ('added', lambda x: x),
])
def test_unknown_blocks(mode, last, same):
    model = unknown_blocks(
        (lambda: AddedInPlace(None)) if last == 'added' else
        lambda: Residual(last))
    def steps(block, x):
        f = block.branch(x)
        return [(x, f, torch.ones(()), x + f, same(x + f))]

    with TrajectoryRecorder(model, 'body.*') as recorder, mode():
        model(IMAGES)
    expected = keep_features(model, recorder.blocks, steps, IMAGES)
    for name, value in recorder.record.items():
        torch.testing.assert_close(
            value.double(), expected[name], rtol=1e-5, atol=0)


def test_states_by_keyword_and_in_tuples():
    plain = unknown_blocks(lambda: Residual(nn.ReLU()))
    model = unknown_blocks(lambda: AsInTransformers(nn.ReLU()))
    model.body = Calls(*model.body)
    records = []
    for net in (plain, model):
        with TrajectoryRecorder(net, 'body.*') as recorder, torch.no_grad():
            net(IMAGES)
        records.append(recorder.record)
    assert records[0]['adaptive'].numel()
    for name, value in records[0].items():
        assert torch.equal(records[1][name], value)


@pytest.mark.parametrize('blocks', ['body.*', Residual, ['body.1', 'body.2']])
def test_unknown_blocks_by_pattern_or_class(blocks):
    model = unknown_blocks(lambda: Residual(nn.ReLU()))

    def steps(block, x):
        f = block.branch(x)
        return [(x, f, torch.ones(()), x + f, relu(x + f))]

    with TrajectoryRecorder(model, blocks) as recorder, torch.no_grad():
        model(IMAGES)
    assert recorder.blocks == ['body.1', 'body.2']
    expected = keep_features(model, recorder.blocks, steps, IMAGES)
    for name, value in recorder.record.items():
        torch.testing.assert_close(
            value.double(), expected[name], rtol=1e-5, atol=0)


def test_patterns_select_stages_and_backbone_comes_first():
    model = nn.Module()
    model.backbone = StepResNetCIFAR(20)
    model.head = nn.Sequential(*StepResNetCIFAR(20).layer3)
    recorder = TrajectoryRecorder(model)
    assert recorder.blocks[0] == 'backbone.layer1.1'
    assert not any(b.startswith('head') for b in recorder.blocks)
    recorder = TrajectoryRecorder(model, 'layer3.*')
    assert recorder.blocks == ['backbone.layer3.1', 'backbone.layer3.2']
    assert recorder.stages.tolist() == [0, 0]
    assert TrajectoryRecorder(model, 'head.*').excluded == ['head.0']
    # The stage's first is left out, not the first of the selection.
    assert TrajectoryRecorder(
        model, 'layer2.[12]').blocks == ['backbone.layer2.1',
                                         'backbone.layer2.2']


@pytest.mark.parametrize('model, blocks, error, message', [
    (torchvision.models.vgg11(), None, ValueError,
     'no residual block.*ResidualStep.*mmdet.models.backbones.resnet'),
    (StepResNetCIFAR(20), 'layer9.*', ValueError,
     r"'layer9.\*' matches no module. Names look like conv1"),
    (StepResNetCIFAR(20), nn.LSTM, ValueError, 'LSTM.*matches no module'),
    (StepResNetCIFAR(20), [], TypeError, r'got \[\]'),
    (StepResNetCIFAR(20), [3], TypeError, 'got 3'),
    (StepResNetCIFAR(20), ['layer1', 'layer1.*'], ValueError,
     'block within a block'),
    (StepResNetCIFAR(20), 'layer1.0', ValueError,
     'first of its stage.*layer1.0'),
])
def test_bad_selection(model, blocks, error, message):
    with pytest.raises(error, match=message):
        TrajectoryRecorder(model, blocks)


def test_a_subclass_with_its_own_forward_is_not_taken_for_its_parent():
    """A block that derives from mmdet's and adds something else."""

    class Halved(mmdet_backbones.resnet.Bottleneck):

        def forward(self, x):
            return (super().forward(x) + x) / 2

    class Net(mmdet_backbones.ResNet):
        arch_settings = {50: (Halved, (3, 4, 6, 3))}

    model = Net(50, **TWO_STAGES)
    with pytest.raises(RuntimeError, match='leave these blocks out'):
        TrajectoryRecorder(model)
    chosen = TrajectoryRecorder(model, 'layer1.*')
    assert chosen.blocks == ['layer1.1', 'layer1.2']


def test_a_network_of_the_table_that_steps_use():
    """Res2Net's forward is long; the table says where its f is."""
    model = ready(mmdet_backbones.Res2Net(depth=50, **TWO_STAGES))
    with TrajectoryRecorder(model) as recorder, torch.no_grad():
        model(IMAGES)
    assert len(recorder.blocks) == 5
    assert (recorder.record['returned'] <= recorder.nsi * 1.001).all()


def test_selecting_what_is_no_residual_step():
    model = torchvision.models.vgg11().eval()
    recorder = TrajectoryRecorder(model, ['features.3', 'features.6'])
    with recorder, pytest.raises(ValueError, match='it is no residual step'):
        model(IMAGES)
    assert no_hooks(model)


def test_large_maps_keep_their_digits():
    """Millions of values a sample, their number odd."""
    model = ready(nn.Sequential(
        nn.Conv2d(3, 8, 1), Residual(nn.ReLU()), Residual(nn.ReLU())))
    images = 1 + torch.rand(1, 3, 723, 517)

    def steps(block, x):
        f = block.branch(x)
        return [(x, f, torch.ones(()), x + f, relu(x + f))]

    with TrajectoryRecorder(model, Residual) as recorder, torch.no_grad():
        model(images)
    expected = keep_features(model, recorder.blocks, steps, images)
    for name, value in recorder.record.items():
        torch.testing.assert_close(
            value.double(), expected[name], rtol=1e-6, atol=0)


def test_unknown_blocks_that_drop_paths_are_refused():
    class Dropping(Residual):

        def __init__(self):
            super().__init__(None)
            self.drop = torchvision.ops.StochasticDepth(0.5, 'row')

        def forward(self, x):
            return x + self.drop(self.branch(x))

    model = unknown_blocks(Dropping)
    with TrajectoryRecorder(model, 'body.*') as recorder, torch.no_grad():
        model(IMAGES)
        model.train()
        with pytest.raises(ValueError, match='by its drop.*eval mode'):
            model(IMAGES)
        model.eval()(IMAGES)
    assert len(recorder) == 6 and no_hooks(model)


def encoder(**kwargs):
    return nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, **kwargs), 3).eval()


@pytest.mark.parametrize('call, message', [
    (lambda: (encoder(), IMAGES[:, 0, :6, :8]), 'batch_first=True'),
    (lambda: (encoder(batch_first=True), torch.zeros(0, 6, 8)),
     r'state \(0, 6, 8\); expected samples'),
    (lambda: (encoder(batch_first=True), torch.zeros(6, 8), None,
              torch.arange(6) > 3), 'layers.1.*set_fastpath_enabled'),
])
def test_states_that_are_no_batch(call, message):
    model, x, *mask = call()
    if mask:
        x, mask = torch.randn(4, 6, 8), [None, mask[1].expand(4, 6)]
    with TrajectoryRecorder(model, 'layers.*'), torch.no_grad():
        with pytest.raises(ValueError, match=message):
            model(x, *mask)


class AddsToItsInput(Residual):

    def forward(self, x):
        x += self.branch(x)
        return x


class NamesItsState(Residual):

    def forward(self, state, shift=None):
        return super().forward(state) + shift


class CallsByName(nn.Sequential):

    def forward(self, x):
        for block in self:
            x = block(shift=torch.zeros(()), state=x)
        return x


class Mixed(nn.Sequential):
    """Blocks of two classes."""

    def __init__(self, first, *others):
        super().__init__(first, *(type('Other', (type(block), ), {})(None)
                                  for block in others))


@pytest.mark.parametrize('change', [
    lambda body: [AddsToItsInput(None) for _ in body],
    lambda body: CallsByName(*(NamesItsState(None) for _ in body)),
    lambda body: Mixed(*body),
])
def test_other_forms_of_the_same_network(change):
    plain = unknown_blocks(lambda: Residual(None))
    model = unknown_blocks(lambda: Residual(None))
    changed = change(model.body)
    model.body = changed if isinstance(changed, nn.Module) else (
        nn.Sequential(*changed))
    model.load_state_dict(plain.state_dict())
    records = []
    for net in (plain, model):
        with TrajectoryRecorder(net, 'body.*') as recorder, torch.no_grad():
            net(IMAGES)
        assert recorder.blocks == ['body.1', 'body.2']
        records.append(recorder.record)
    assert records[0]['adaptive'].min() > 0
    for name, value in records[0].items():
        assert torch.equal(records[1][name], value)


ELEMENTWISE = sorted(set(nn.modules.activation.__all__) - {
    'GLU', 'MultiheadAttention', 'Softmin', 'Softmax', 'Softmax2d',
    'LogSoftmax', 'Threshold'})


@pytest.mark.parametrize('name', ELEMENTWISE)
def test_every_activation_is_seen(name):
    """What stands behind it is no part of the step."""
    activation = getattr(nn, name)()
    model = unknown_blocks(lambda: Residual(activation)).eval()
    with TrajectoryRecorder(model, 'body.*') as recorder, torch.no_grad():
        model(IMAGES)
    record = recorder.record
    expected = keep_features(model, recorder.blocks, lambda block, x: [(
        x, block.branch(x), torch.ones(()), x + block.branch(x),
        activation(x + block.branch(x)))], IMAGES)
    for name, value in record.items():
        torch.testing.assert_close(
            value.double(), expected[name], rtol=1e-5, atol=0)
