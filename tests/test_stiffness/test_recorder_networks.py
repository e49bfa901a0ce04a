"""The recorder against an evaluation that keeps all features."""

import mmdet.models.backbones as mmdet_backbones
import mmpretrain.models.backbones as mmpretrain_backbones
import pytest
import torch
import torch.nn as nn

from mmstepnet.attentions import choose_step
from mmstepnet.models import (
    StepResNetCIFAR,
    StepVisionTransformer,
)
from mmstepnet.steps import ResidualStep
from mmstepnet.stiffness import TrajectoryRecorder
from tests.test_stiffness.reference import (
    IMAGES,
    TWO_STAGES,
    assert_recorded,
    block_of,
    keep_features,
    mm_branch,
    no_hooks,
    ours,
    ours_preact,
    plain_step,
    post_activation,
    ready,
    recorded,
    relu,
    small_torchvision,
    tv_branch,
)


def mmpretrain_se(block, x, f):
    se = block.se_layer
    return se.conv2(se.conv1(f.mean((2, 3), keepdim=True)))


def timm_se(block, x, f):
    se = block.se
    hidden = relu(se.fc1(f.mean((2, 3), keepdim=True)))
    return torch.sigmoid(se.fc2(hidden))


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


def step_resnet(attention=None, **kwargs):
    return StepResNetCIFAR(20, attention=attention, **kwargs)


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


def timm_seresnet():
    resnet = pytest.importorskip('timm').models.resnet
    return resnet.ResNet(
        resnet.Bottleneck, [2, 3, 1, 1],
        channels=(16, 32, 64, 128),
        block_args=dict(attn_layer='se'))


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
        pad_small_map=True), transformer, 10, 3),
    'mmdet_resnet': (lambda: mmdet_backbones.ResNet(50), mm_plain, 12, 4),
    'mmdet_plugin':
    (mmdet_resnet_with_plugin, post_activation(context_branch), 5, 2),
    'torchvision': (small_torchvision, tv_plain, 3, 4),
    'timm_se': (timm_seresnet, post_activation(tv_branch, timm_se), 3, 4),
}


@pytest.mark.parametrize('choose', [
    lambda f: torch.tensor(0.5),
    lambda f: f.new_tensor([0.5]),
    lambda f: torch.linspace(0.1, 2, f.shape[1])[:, None, None],
    lambda f: f.mean((1, 2, 3), keepdim=True).exp(),
    lambda f: f.mean((0, 1), keepdim=True).exp(),
    lambda f: f.mean(1, keepdim=True).exp(),
])
def test_steps_that_broadcast(choose):
    class Own(nn.Module):
        def forward(self, x, f):
            return choose(f)

    torch.manual_seed(0)
    model = ready(step_resnet())
    for module in model.modules():
        if isinstance(module, ResidualStep):
            module.attention = Own()
    recorder = recorded(model)
    assert_recorded(recorder, model, ours)


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
    blocks = list(dict.fromkeys(map(block_of, recorder.blocks)))
    # The first of its container is left out, but where it is alone in it.
    assert all(name.endswith('.0') for name in recorder.excluded)
    modules = dict(model.named_modules())
    assert not any(f'{name[:-1]}1' in modules for name in blocks
                   if name.endswith('.0'))
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


def test_resnet164_has_17_values_a_stage():
    model = ready(StepResNetCIFAR(164, attention=dict(type='StepNet')))
    images = IMAGES[:2]
    recorder = recorded(model, images)
    assert recorder.stages.bincount().tolist() == [17, 17, 17]
    assert_recorded(recorder, model, ours, images)


def test_our_vision_transformer_records_both_steps():
    model = ready(
        StepVisionTransformer('deit-tiny', img_size=32, patch_size=8))

    def steps(layer, x):
        def as_map(t):
            return t.transpose(1, 2)[..., None]

        f = layer.attn(layer.ln1(x))
        step = choose_step(layer.step.attention, as_map(x), as_map(f))
        step = step[..., 0].transpose(1, 2)
        y = x + f * step
        g = layer.ffn.layers(layer.ln2(y))
        return [(x, f, step, y, y), plain_step(y, g)]

    recorder = recorded(model)
    assert recorder.blocks[:2] == ['layers.1.step', 'layers.1.ffn_step']
    assert recorder.excluded == ['layers.0']
    assert (recorder.stages == 0).all() and len(recorder.stages) == 22
    assert_recorded(recorder, model, steps)
