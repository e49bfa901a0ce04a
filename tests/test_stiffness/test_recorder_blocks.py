"""Blocks of any class, against an evaluation that keeps features."""

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
    assert_recorded,
    blocks_in_a_row,
    no_hooks,
    ready,
    recorded,
    relu,
    residual_step,
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
    (nn.functional.gelu, lambda x: x * (1 + (x / 2**0.5).erf()) / 2),
    (nn.functional.silu, lambda x: x / (1 + (-x).exp())),
    (lambda x: nn.functional.prelu(x, torch.tensor([0.25])),
     lambda x: torch.maximum(x, 0.25 * x)),
    (torch.Tensor.tanh, lambda x: 1 - 2 / ((2 * x).exp() + 1)),
    ('added', lambda x: x),
])
def test_blocks_of_any_class(mode, last, same):
    model = blocks_in_a_row(
        (lambda: AddedInPlace(None)) if last == 'added' else
        lambda: Residual(last))
    with TrajectoryRecorder(model, 'body.*') as recorder, mode():
        model(IMAGES)
    assert_recorded(recorder, model, residual_step(same))


def test_states_by_keyword_and_in_tuples():
    plain = blocks_in_a_row(lambda: Residual(nn.ReLU()))
    model = blocks_in_a_row(lambda: AsInTransformers(nn.ReLU()))
    model.body = Calls(*model.body)
    records = []
    for net in (plain, model):
        recorder = recorded(net, blocks='body.*')
        records.append(recorder.record)
    assert records[0]['adaptive'].numel()
    for name, value in records[0].items():
        assert torch.equal(records[1][name], value)


@pytest.mark.parametrize('blocks', [Residual, ['body.1', 'body.2']])
def test_blocks_by_class_or_name(blocks):
    model = blocks_in_a_row(lambda: Residual(nn.ReLU()))
    recorder = recorded(model, blocks=blocks)
    assert recorder.blocks == ['body.1', 'body.2']
    assert_recorded(recorder, model, residual_step(relu))


class Detector(nn.Module):
    """A backbone, and a head with residual blocks of its own."""

    def __init__(self):
        super().__init__()
        self.backbone = StepResNetCIFAR(20)
        self.head = nn.Sequential(*list(StepResNetCIFAR(20).layer3)[1:])

    def forward(self, x):
        return self.head(self.backbone(x)[-1])


def test_patterns_select_stages_and_backbone_comes_first():
    model = ready(Detector())
    recorder = recorded(model)
    assert recorder.blocks == [
        f'backbone.layer{s}.{b}' for s in (1, 2, 3) for b in (1, 2)]
    assert {s.left_out for s in recorder.steps
            if s.name.startswith('head')} == {'outside of the backbone'}
    for blocks in ('layer3.*', 'layer3', 'backbone.layer3'):
        recorder = recorded(model, blocks=blocks)
        assert recorder.blocks == ['backbone.layer3.1', 'backbone.layer3.2']
        assert recorder.stages.tolist() == [0, 0]
    for blocks in ('head.*', 'head'):
        assert recorded(model, blocks=blocks).excluded == ['head.0']
    # The stage's first is left out, not the first of the selection.
    assert recorded(model, blocks='layer2.[12]').blocks == [
        'backbone.layer2.1', 'backbone.layer2.2']


@pytest.mark.parametrize('blocks, error, message', [
    ('layer9.*', ValueError,
     r"'layer9.\*' matches no module. Names look like layer1, layer"),
    (nn.LSTM, ValueError, 'LSTM.*matches no module'),
    ([], TypeError, r'got \[\]'),
    ([3], TypeError, r'got \[3\]'),
])
def test_bad_selection(blocks, error, message):
    with pytest.raises(error, match=message):
        TrajectoryRecorder(StepResNetCIFAR(20), blocks)


@pytest.mark.parametrize('model, blocks, message', [
    (torchvision.models.vgg11(), None, 'no residual step of VGG.*adds no'),
    (torchvision.models.vgg11(), ['features.3'], 'no residual step of VGG'),
    (StepResNetCIFAR(20), 'layer1.0', 'layer1.0: first of its stage'),
])
def test_nothing_to_record(model, blocks, message):
    model.eval()
    with TrajectoryRecorder(model, blocks) as recorder, torch.no_grad():
        with pytest.raises(ValueError, match=f'(?s){message}'):
            model(IMAGES)
    assert len(recorder) == 0 and no_hooks(model)


def test_additions_inside_a_branch_are_no_steps():
    """Res2Net adds slices to one another on the way."""
    model = ready(mmdet_backbones.Res2Net(depth=50, **TWO_STAGES))
    recorder = recorded(model)
    assert len(recorder.blocks) == 5
    assert (recorder.record['returned'] <= recorder.nsi * 1.001).all()


def test_large_maps_keep_their_digits():
    """Millions of values a sample, their number odd."""
    model = ready(nn.Sequential(
        nn.Conv2d(3, 8, 1), Residual(nn.ReLU()), Residual(nn.ReLU())))
    images = 1 + torch.rand(1, 3, 723, 517)
    recorder = recorded(model, images, blocks=Residual)
    assert_recorded(recorder, model, residual_step(relu), images, rtol=1e-6)


@pytest.mark.parametrize('scaled', [True, False])
def test_the_step_that_a_block_proposes_is_measured(scaled):
    """Stochastic depth drops it from what the block returns."""

    class Dropping(Residual):

        def __init__(self):
            super().__init__(None)
            self.drop = torchvision.ops.StochasticDepth(0.5, 'row')

        def forward(self, x):
            f = self.branch(x)
            if scaled:
                return x + self.drop(f)
            kept = (0.5 + torch.rand(len(x), 1, 1, 1)).floor()
            return x + f.div(0.5) * kept  # as in mmcv

    model = blocks_in_a_row(Dropping)
    images = IMAGES.repeat(4, 1, 1, 1)
    with TrajectoryRecorder(model) as plain, torch.no_grad():
        model.train()
        kept = []
        for block in model.body:
            block.register_forward_pre_hook(
                lambda m, args: kept.append((m, args[0])))
        model(images)
    record = plain.record
    returned = set()
    for k, (block, x) in enumerate(kept[1:]):
        proposed = (block.branch(x).detach().double().flatten(1).norm(dim=1)
                    / x.double().flatten(1).norm(dim=1))
        for name in ('adaptive', 'unit'):
            torch.testing.assert_close(
                record[name][:, k].double(), proposed, rtol=1e-5, atol=0)
        ratio = record['returned'][:, k].double() / proposed
        returned |= {round(r, 3) for r in ratio.tolist()}
    assert returned == {0.0, 2.0}


def encoder(**kwargs):
    return nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, **kwargs), 3).eval()


@pytest.mark.parametrize('call, message', [
    (lambda: (encoder(), IMAGES[:, 0, :6, :8]), 'batch_first=True'),
    (lambda: (encoder(batch_first=True), torch.zeros(0, 6, 8)),
     r'state \(0, 6, 8\): samples, .* were expected'),
    (lambda: (encoder(batch_first=True), torch.zeros(6, 8), None,
              torch.arange(6) > 3), 'layers.0.*set_fastpath_enabled'),
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
    plain = blocks_in_a_row(lambda: Residual(None))
    model = blocks_in_a_row(lambda: Residual(None))
    changed = change(model.body)
    model.body = changed if isinstance(changed, nn.Module) else (
        nn.Sequential(*changed))
    model.load_state_dict(plain.state_dict())
    records = []
    for net in (plain, model):
        recorder = recorded(net, blocks='body.*')
        assert recorder.blocks == ['body.1', 'body.2']
        records.append(recorder.record)
    assert records[0]['adaptive'].min() > 0
    for name, value in records[0].items():
        torch.testing.assert_close(
            records[1][name], value, rtol=1e-6, atol=0)


ELEMENTWISE = sorted(set(nn.modules.activation.__all__) - {
    'GLU', 'MultiheadAttention', 'Softmin', 'Softmax', 'Softmax2d',
    'LogSoftmax', 'Threshold'})


@pytest.mark.parametrize('name', ELEMENTWISE)
def test_every_activation_is_seen(name):
    """What stands behind it is no part of the step."""
    activation = getattr(nn, name)()
    model = blocks_in_a_row(lambda: Residual(activation)).eval()
    assert_recorded(recorded(model, blocks='body.*'), model,
                    residual_step(activation))
