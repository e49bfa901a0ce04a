"""The recorder against an evaluation that keeps all features."""

import copy
import gc
import threading

import mmdet.models.backbones as mmdet_backbones
import mmpretrain.models.backbones as mmpretrain_backbones
import numpy as np
import pytest
import torch
import torch.nn as nn
import torchvision

from mmstepnet.models import (
    StepResNet,
    StepResNetCIFAR,
    StepVisionTransformer,
)
from mmstepnet.stiffness import TrajectoryRecorder, neural_stiffness_index
from mmstepnet.stiffness.trajectory import READINGS
from tests.utils import not_on_torch_21, perturb

IMAGES = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(5))


def ready(model):
    perturb(model)
    model.eval()  # returns None in the hosts
    return model


def relu(x):
    return x.clamp(min=0)


def conv_branch(block, norms, convs):
    """f of a post-activation block, by its parts."""

    def branch(x):
        for norm, conv in zip(norms[:-1], convs[:-1]):
            x = relu(norm(conv(x)))
        return norms[-1](convs[-1](x))

    return branch


def mm_branch(block):
    count = 3 if hasattr(block, 'conv3') else 2
    return conv_branch(block,
                       [getattr(block, f'norm{k + 1}') for k in range(count)],
                       [getattr(block, f'conv{k + 1}') for k in range(count)])


def tv_branch(block):
    count = 3 if hasattr(block, 'conv3') else 2
    return conv_branch(block,
                       [getattr(block, f'bn{k + 1}') for k in range(count)],
                       [getattr(block, f'conv{k + 1}') for k in range(count)])


def post_activation(branch, gate=None):
    """Steps (x, f, Δt, x_next, out) of a post-activation block."""

    def steps(block, x):
        f = branch(block)(x)
        step = torch.ones(()) if gate is None else gate(block, x, f)
        x_next = x + f * step
        return [(x, f, step, x_next, relu(x_next))]

    return steps


def mmpretrain_se(block, x, f):
    se = block.se_layer
    return se.conv2(se.conv1(f.mean((2, 3), keepdim=True)))


def timm_se(block, x, f):
    se = block.se
    hidden = relu(se.fc1(f.mean((2, 3), keepdim=True)))
    return torch.sigmoid(se.fc2(hidden))


def plain_step(x, f):
    return x, f, torch.ones(()), x + f, x + f


def transformer(block, x, *shape):
    norms = ('ln1', 'ln2') if hasattr(block, 'ln1') else ('norm1', 'norm2')
    f = block.attn(getattr(block, norms[0])(x), *shape)
    middle = x + f
    g = block.ffn.layers(getattr(block, norms[1])(middle))
    return [plain_step(x, f), plain_step(middle, g)]


def convnext(block, x):
    y = block.depthwise_conv(x).permute(0, 2, 3, 1)
    y = block.norm(y, data_format='channel_last')
    y = block.pointwise_conv2(block.act(block.pointwise_conv1(y)))
    return [plain_step(x, block.gamma.view(-1, 1, 1) * y.permute(0, 3, 1, 2))]


def ours(block, x):
    f = mm_branch(block)(x)
    attention = block.step.attention
    step = torch.ones(()) if attention is None else attention(x, f)
    return [(x, f, step, x + f * step, relu(x + f * step))]


def ours_preact(block, x):
    y = x
    for norm, conv in zip(block.norms, block.convs):
        y = conv(relu(norm(y)))
    step = (
        torch.ones(()) if block.step.attention is None else
        block.step.attention(x, y))
    return [(x, y, step, x + y * step, x + y * step)]


def size(x):
    return x.detach().double().flatten(1).norm(dim=1)


def keep_features(model, names, steps, images):
    """All features at once, then every reading in float64, {name: (N, L)}."""
    kept = {}
    modules = dict(model.named_modules())
    handles = [
        modules[name].register_forward_pre_hook(
            lambda m, args, name=name: kept.update(
                {name: [a.clone() if torch.is_tensor(a) else a
                        for a in args]})) for name in names
    ]
    with torch.no_grad():
        model(images)
        for handle in handles:
            handle.remove()
        readings = {key: [] for key in (*READINGS, 'x_norm', 'f_norm',
                                        'step_mean')}
        for name in names:
            for x, f, step, x_next, out in steps(modules[name], *kept[name]):
                n = size(x)
                readings['adaptive'].append(
                    neural_stiffness_index(x, x + f * step, step)
                    if (step != 0).all() else size(f) / n)
                readings['unit'].append(size(x_next - x) / n)
                readings['returned'].append(size(out - x) / n)
                readings['x_norm'].append(n)
                readings['f_norm'].append(size(f))
                readings['step_mean'].append(
                    step.double().expand_as(x).flatten(1).mean(1))
    return {key: torch.stack(v, 1) for key, v in readings.items()}


def step_resnet(attention=None, **kwargs):
    return StepResNetCIFAR(20, attention=attention, **kwargs)


TWO_STAGES = dict(
    num_stages=2, strides=(1, 2), dilations=(1, 1), out_indices=(1, ))


def mmdet_resnet_with_plugin():
    return mmdet_backbones.ResNet(
        50,
        plugins=[
            dict(
                cfg=dict(type='ContextBlock', ratio=1 / 16),
                position='after_conv3')
        ],
        **TWO_STAGES)


def context_branch(block):
    return lambda x: block.context_block(mm_branch(block)(x))


def small_torchvision():
    resnet = torchvision.models.resnet
    return resnet.ResNet(resnet.Bottleneck, [2, 3, 1, 1])


def timm_model(**block_args):
    resnet = pytest.importorskip('timm').models.resnet
    return resnet.ResNet(
        resnet.Bottleneck, [2, 3, 1, 1],
        channels=(16, 32, 64, 128),
        block_args=block_args)


mm_plain = post_activation(mm_branch)
tv_plain = post_activation(tv_branch)
MODELS = {
    'ours': (lambda: step_resnet(), ours, 6, 3),
    'ours_stepnet': (lambda: step_resnet(dict(type='StepNet')), ours, 6, 3),
    'ours_se': (lambda: step_resnet(dict(type='SE')), ours, 6, 3),
    'ours_preact':
    (lambda: step_resnet(dict(type='StepNet'), preact=True), ours_preact, 6,
     3),
    'mmpretrain_resnet34':
    (lambda: mmpretrain_backbones.ResNet(34, **TWO_STAGES), mm_plain, 5, 2),
    'mmpretrain_resnext':
    (lambda: mmpretrain_backbones.ResNeXt(50, **TWO_STAGES), mm_plain, 5, 2),
    'mmpretrain_seresnet':
    (lambda: mmpretrain_backbones.SEResNet(50, **TWO_STAGES),
     post_activation(mm_branch, mmpretrain_se), 5, 2),
    'mmpretrain_convnext':
    (lambda: mmpretrain_backbones.ConvNeXt(
        dict(depths=[2, 2, 3, 2], channels=[24, 48, 96, 192])), convnext, 5,
     4),
    'mmpretrain_vit':
    (lambda: mmpretrain_backbones.VisionTransformer(
        'deit-tiny', img_size=32, patch_size=8), transformer, 22, 1),
    'mmpretrain_swin':
    (lambda: mmpretrain_backbones.SwinTransformer(
        dict(embed_dims=24, depths=[2, 2, 3, 1], num_heads=[1, 2, 4, 8]),
        img_size=32,
        pad_small_map=True), transformer, 8, 4),
    'mmdet_resnet': (lambda: mmdet_backbones.ResNet(50), mm_plain, 12, 4),
    'mmdet_resnet18':
    (lambda: mmdet_backbones.ResNet(18, **TWO_STAGES), mm_plain, 2, 2),
    'mmdet_plugin':
    (mmdet_resnet_with_plugin, post_activation(context_branch), 5, 2),
    'mmdet_resnext':
    (lambda: mmdet_backbones.ResNeXt(depth=50, groups=8, **TWO_STAGES),
     mm_plain, 5, 2),
    'mmdet_swin':
    (lambda: mmdet_backbones.SwinTransformer(
        embed_dims=24, depths=(2, 2, 3, 1), num_heads=(1, 2, 4, 8)),
     transformer, 8, 4),
    'torchvision': (small_torchvision, tv_plain, 3, 4),
    'timm': (lambda: timm_model(), tv_plain, 3, 4),
    'timm_se': (lambda: timm_model(attn_layer='se'),
                post_activation(tv_branch, timm_se), 3, 4),
}


@pytest.mark.parametrize('key', MODELS)
def test_equals_an_evaluation_that_keeps_all_features(key):
    build, steps, count, stages = MODELS[key]
    torch.manual_seed(0)
    model = ready(build())
    with TrajectoryRecorder(model) as recorder, torch.no_grad():
        model(IMAGES[:2])
        model(IMAGES[2:])
    assert len(recorder.blocks) == count
    assert len(recorder) == 3
    assert len(recorder.excluded) == stages
    blocks = [
        b.removesuffix('.attn').removesuffix('.ffn') for b in recorder.blocks
    ]
    blocks = list(dict.fromkeys(blocks))
    # The first of its container, and nothing else, is left out.
    assert all(name.endswith('.0') for name in recorder.excluded)
    assert not any(name.endswith('.0') for name in blocks)
    parts = [
        keep_features(model, blocks, steps, images)
        for images in (IMAGES[:2], IMAGES[2:])
    ]
    for name, value in recorder.record.items():
        expected = torch.cat([p[name] for p in parts])
        assert value.dtype == torch.float32 and value.shape == (3, count)
        assert expected.min() > 0
        torch.testing.assert_close(
            value.double(), expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(recorder.nsi, recorder.record['adaptive'])
    containers = [name.rpartition('.')[0] for name in recorder.blocks]
    if key.endswith(('vit', 'swin')):
        containers = [c.rpartition('.')[0] for c in containers]
    assert [containers.index(c) for c in containers] == [
        recorder.stages.tolist().index(s) for s in recorder.stages]
    assert no_hooks(model)


def no_hooks(model):
    return not any(
        m._forward_hooks or m._forward_pre_hooks
        or getattr(m, '_observers', None) for m in model.modules())


def test_resnet164_has_17_values_a_stage():
    model = ready(StepResNetCIFAR(164, attention=dict(type='StepNet')))
    images = IMAGES[:2]
    with TrajectoryRecorder(model) as recorder, torch.no_grad():
        model(images)
    assert recorder.stages.bincount().tolist() == [17, 17, 17]
    expected = keep_features(model, recorder.blocks, ours, images)
    for name, value in recorder.record.items():
        torch.testing.assert_close(
            value.double(), expected[name], rtol=1e-5, atol=0)


@pytest.mark.parametrize('host', [
    mmpretrain_backbones.ResNet, mmdet_backbones.ResNet,
    lambda depth: torchvision.models.resnet50()
])
def test_our_plain_resnet_equals_the_hosts(host):
    ours_, theirs = StepResNet(50, attention=None), perturb(host(50))
    ours_.load_state_dict({
        k: v for k, v in theirs.state_dict().items()
        if not k.startswith('fc.')
    })
    records = []
    for model in (ours_, theirs):
        model.eval()
        with TrajectoryRecorder(model) as recorder, torch.no_grad():
            model(IMAGES)
        records.append(recorder)
    assert records[0].blocks == records[1].blocks
    assert torch.equal(records[0].stages, records[1].stages)
    for name, value in records[0].record.items():
        torch.testing.assert_close(
            value, records[1].record[name], rtol=1e-6, atol=0)
    # Of a plain net the first two agree; the activation changes the third.
    record = records[0].record
    assert torch.equal(record['adaptive'], record['unit'])
    assert (record['returned'] < 0.95 * record['unit']).any()


def test_our_vision_transformer_records_both_steps():
    model = ready(
        StepVisionTransformer('deit-tiny', img_size=32, patch_size=8))

    def steps(layer, x):
        def as_map(t):
            return t.transpose(1, 2)[..., None]

        f = layer.attn(layer.ln1(x))
        step = layer.step.attention(as_map(x), as_map(f))
        step = step[..., 0].transpose(1, 2)
        y = x + f * step
        g = layer.ffn.layers(layer.ln2(y))
        return [(x, f, step, y, y), plain_step(y, g)]

    with TrajectoryRecorder(model) as recorder, torch.no_grad():
        model(IMAGES)
    assert recorder.blocks[:2] == ['layers.1.step', 'layers.1.ffn_step']
    assert recorder.excluded == ['layers.0']
    assert (recorder.stages == 0).all() and len(recorder.stages) == 22
    layers = [f'layers.{i}' for i in range(1, 12)]
    expected = keep_features(model, layers, steps, IMAGES)
    for name, value in recorder.record.items():
        torch.testing.assert_close(
            value.double(), expected[name], rtol=1e-5, atol=0)


class Residual(nn.Module):
    """A block of no known class, with or without activation behind it."""

    def __init__(self, last):
        super().__init__()
        self.first = nn.Conv2d(8, 8, 3, padding=1)
        self.middle = nn.ReLU(inplace=True)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.last = last

    def branch(self, x):
        return self.second(relu(self.first(x)))

    def forward(self, x):
        f = self.second(self.middle(self.first(x)))
        f += x
        return f if self.last is None else self.last(f)


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


def unknown_blocks(block):
    model = nn.Sequential()
    model.add_module('stem', nn.Conv2d(3, 8, 3))
    model.add_module('body', nn.Sequential(*[block() for _ in range(3)]))
    return ready(model)


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
    """mmdet's Res2Net derives from Bottleneck and adds something else."""
    model = mmdet_backbones.Res2Net(depth=50, **TWO_STAGES)
    with pytest.raises(ValueError, match='no residual block that is known'):
        TrajectoryRecorder(model)
    ready(model)
    with TrajectoryRecorder(model, 'layer*.*') as recorder, torch.no_grad():
        model(IMAGES)
    assert len(recorder.blocks) == 5
    assert (recorder.record['returned'] <= recorder.nsi * 1.001).all()


def test_selecting_what_is_no_residual_step():
    model = torchvision.models.vgg11().eval()
    recorder = TrajectoryRecorder(model, ['features.3', 'features.6'])
    with recorder, pytest.raises(ValueError, match='it is no residual step'):
        model(IMAGES)
    assert no_hooks(model)


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
    with TrajectoryRecorder(model) as plain, torch.no_grad():
        model(IMAGES)
    torch.testing.assert_close(
        recorder.nsi, plain.nsi.repeat(2, 1), rtol=1e-6, atol=0)


@pytest.mark.parametrize('recorded', [(True, False), (False, True)])
def test_a_checkpointed_pass_goes_back_the_way_it_came(recorded):
    """Whoever observes, or no longer does, at the time of backward."""
    model = ready(StepResNetCIFAR(20, with_cp=True))
    gradients = []
    for forward, backward in ((False, False), recorded):
        images = IMAGES.clone().requires_grad_()
        recorder = TrajectoryRecorder(model)
        if forward:
            recorder.start()
        out = model(images)[0].square().sum()
        recorder.stop()
        if backward:
            recorder.start()
        out.backward()
        recorder.stop()
        gradients.append(images.grad)
        assert len(recorder) == len(IMAGES) * forward
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-6)


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
    with TrajectoryRecorder(model) as recorder:
        modules = dict(model.named_modules())
        handles = [
            modules[name].register_forward_pre_hook(
                lambda m, args: kept.append(size(args[0])))
            for name in recorder.blocks
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
    with TrajectoryRecorder(model) as full, torch.no_grad():
        model(IMAGES)
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
    with TrajectoryRecorder(model) as clean, torch.no_grad():
        model(IMAGES)
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


def test_copies_are_not_recorded():
    """An EMA copy made while recording."""
    model = ready(StepResNetCIFAR(20))
    host = ready(small_torchvision())
    for net in (model, host):
        with TrajectoryRecorder(net) as recorder, torch.no_grad():
            net(IMAGES)
            ema = torch.optim.swa_utils.AveragedModel(net)
            for parameter in ema.parameters():
                parameter.mul_(1.5)
            ema(IMAGES)
            copy.deepcopy(net)(IMAGES)
        assert len(recorder) == 3
        with TrajectoryRecorder(ema) as wrapped, torch.no_grad():
            ema(IMAGES)
        assert wrapped.blocks == recorder.blocks and len(wrapped) == 3
        assert not torch.allclose(wrapped.nsi, recorder.nsi)


def test_wrappers():
    model = ready(StepResNetCIFAR(20))
    with TrajectoryRecorder(model) as recorder, torch.no_grad():
        model(IMAGES)
    parallel = nn.DataParallel(model)
    with TrajectoryRecorder(parallel) as wrapped, torch.no_grad():
        parallel(IMAGES)
    assert torch.equal(wrapped.nsi, recorder.nsi)
    parallel.device_ids = [0, 1]
    with pytest.raises(ValueError, match='DistributedDataParallel'):
        TrajectoryRecorder(parallel)


@pytest.mark.skipif(
    not hasattr(torch.compiler, 'set_stance'), reason='PyTorch before 2.6')
@pytest.mark.parametrize('compile_first', [True, False])
@pytest.mark.parametrize('in_place', [True, False])
def test_compiled_models_are_recorded_uncompiled(compile_first, in_place):
    model = ready(StepResNetCIFAR(20))
    with TrajectoryRecorder(model) as recorder, torch.no_grad():
        model(IMAGES)
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
    ([0, 1, 3], 'did not run all blocks: blocks.2 did not run'),
    ([0, 1, 1, 2, 3], 'blocks.1 ran a second time.*blocks.2, blocks.3'),
    ([0], 'none of them ran'),
])
def test_blocks_that_are_skipped_or_shared_are_refused(order, message):
    model = Skipping(order)
    with TrajectoryRecorder(model, Residual) as recorder:
        with pytest.raises(RuntimeError, match=message):
            model(torch.randn(2, 8, 5, 5))
    with pytest.raises(RuntimeError, match='no forward pass was recorded'):
        recorder.nsi  # noqa: B018


class Regions(nn.Module):
    """The second stage sees parts of images."""

    def __init__(self):
        super().__init__()
        self.image = nn.Sequential(Residual(nn.ReLU()), Residual(nn.ReLU()))
        self.region = nn.Sequential(Residual(nn.ReLU()), Residual(nn.ReLU()))

    def forward(self, x):
        x = self.image(x)
        return self.region(x.unfold(2, 4, 4).flatten(0, 0).reshape(
            -1, 8, 4, 8))


def test_different_numbers_of_samples_are_refused():
    model = Regions().eval()
    with TrajectoryRecorder(model, Residual), torch.no_grad():
        with pytest.raises(RuntimeError, match='image.1 2, region.1 4'):
            model(torch.randn(2, 8, 8, 8))


def test_nan_features_and_states_of_norm_zero():
    model = ready(StepResNetCIFAR(20))
    images = IMAGES.clone()
    images[1, 0, 0, 0] = np.nan
    with TrajectoryRecorder(model) as recorder, torch.no_grad():
        model(IMAGES[:1])
        with pytest.raises(ValueError,
                           match='sample 2 at block layer1.1 has NaN'):
            model(images)
    assert len(recorder) == 1

    model = nn.Sequential(Residual(nn.ReLU()), Residual(nn.ReLU()))
    with TrajectoryRecorder(model, Residual) as recorder, torch.no_grad():
        for block in model:
            block.first.bias.zero_()
            block.second.bias.zero_()
        model(torch.zeros(2, 8, 5, 5))
        assert (recorder.nsi == 0).all()
        model[1].second.bias.fill_(1)
        with pytest.raises(ValueError, match='state of norm 0 that changes'):
            model(torch.zeros(2, 8, 5, 5))


def test_features_are_not_kept():
    model = ready(StepResNetCIFAR(20))
    with TrajectoryRecorder(model) as recorder, torch.no_grad():
        for _ in range(3):
            model(IMAGES)
        gc.collect()
        alive = [
            t for t in gc.get_objects() if type(t) is torch.Tensor
            and t.dim() == 4 and t.shape[0] == 3 and t is not IMAGES
        ]
    assert not alive
    # Six float32 numbers a sample and block.
    stored = sum(part.untyped_storage().nbytes() for part in recorder._parts)
    assert stored == 9 * 6 * 6 * 4


def test_start_twice_stop_twice_and_continue():
    model = ready(StepResNetCIFAR(20))
    recorder = TrajectoryRecorder(model)
    recorder.start()
    with pytest.raises(RuntimeError, match='started already'):
        recorder.start()
    with torch.no_grad():
        model(IMAGES[:1])
        recorder.stop()
        recorder.stop()
        model(IMAGES)
        with recorder:
            model(IMAGES[1:])
    assert len(recorder) == 3
    recorder.clear()
    assert len(recorder) == 0


def test_training_mode_with_stochastic_depth_measures_the_proposed_step():
    model = perturb(
        StepResNetCIFAR(20, attention=None, drop_path_rate=0.9,
                        norm_eval=True)).train()
    with TrajectoryRecorder(model) as recorder, torch.no_grad():
        model(IMAGES)
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
    shares = {
        name: next((m.drop_prob for m in model.get_submodule(name).modules()
                    if type(m).__name__ == 'DropPath'), 0)
        for name in {b.removesuffix('.attn').removesuffix('.ffn')
                     for b in recorder.blocks}
    }
    kept = 1 - torch.tensor([
        shares[b.removesuffix('.attn').removesuffix('.ffn')]
        for b in recorder.blocks
    ], dtype=torch.float64)
    survived = returned > 0
    assert survived.any(0).all()
    torch.testing.assert_close(
        returned[survived], (proposed / kept)[survived], rtol=1e-4, atol=0)


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


def test_threads_do_not_disturb_other_models():
    model = ready(StepResNetCIFAR(20))
    other = copy.deepcopy(model)
    with TrajectoryRecorder(model) as recorder, torch.no_grad():
        thread = threading.Thread(target=other, args=(IMAGES, ))
        thread.start()
        model(IMAGES)
        thread.join()
    assert len(recorder) == 3
