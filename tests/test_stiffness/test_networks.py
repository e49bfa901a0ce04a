"""Networks of the hosts against an evaluation that keeps all features."""

import copy

import mmdet.models.backbones as mmdet_backbones
import mmpretrain.models.backbones as mmpretrain_backbones
import pytest
import torch

from mmstepnet.models import StepResNetCIFAR, StepVisionTransformer
from mmstepnet.stiffness import TrajectoryRecorder
from tests.test_stiffness.reference import (
    IMAGES,
    assert_recorded,
    block_of,
    branch_of,
    no_hooks,
    our_step,
    plain_step,
    post_activation,
    ready,
    recorded,
    relu,
    small_resnet,
)

TWO_STAGES = dict(
    num_stages=2, strides=(1, 2), dilations=(1, 1), out_indices=(1, ))


def mmpretrain_se(block, x, f):
    se = block.se_layer
    return se.conv2(se.conv1(f.mean((2, 3), keepdim=True)))


def timm_se(block, x, f):
    se = block.se
    hidden = relu(se.fc1(f.mean((2, 3), keepdim=True)))
    return torch.sigmoid(se.fc2(hidden))


def preact(block, x):
    y = x
    for k, conv in enumerate(block.convs, 1):
        norm = getattr(block, getattr(block, f'norm{k}_name'))
        y = conv(relu(norm(y)))
    step = our_step(block, x, y)
    return [(x, y, step, x + y * step, x + y * step)]


def transformer(block, x, *shape):
    norms = ('ln1', 'ln2') if hasattr(block, 'ln1') else ('norm1', 'norm2')
    f = block.attn(getattr(block, norms[0])(x), *shape)
    if hasattr(block, 'step'):  # it is the attention of ours
        step = block.step.attention
        maps = [t.transpose(1, 2)[..., None] for t in (x, f)]
        step = our_step(block, *maps)[..., 0].transpose(1, 2)
        first = x, f, step, x + f * step, x + f * step
    else:
        first = plain_step(x, f)
    middle = first[-1]
    g = block.ffn.layers(getattr(block, norms[1])(middle))
    return [first, plain_step(middle, g)]


def with_plugin():
    return mmdet_backbones.ResNet(50, plugins=[dict(
        cfg=dict(type='ContextBlock', ratio=1 / 16),
        position='after_conv3')], **TWO_STAGES)


def context_branch(block):
    return lambda x: block.context_block(branch_of(block)(x))


def timm_seresnet():
    resnet = pytest.importorskip('timm').models.resnet
    return resnet.ResNet(resnet.Bottleneck, [2, 3, 1, 1],
                         channels=(16, 32, 64, 128),
                         block_args=dict(attn_layer='se'))


ours = post_activation(gate=our_step)
NETWORKS = {  # how it is built, its steps, how many, in how many stages
    'ours, StepNet': (lambda: StepResNetCIFAR(20), ours, 6, 3),
    'ours, preact': (lambda: StepResNetCIFAR(20, preact=True), preact, 6, 3),
    'ours, ViT': (lambda: StepVisionTransformer(
        'deit-tiny', img_size=32, patch_size=8), transformer, 22, 1),
    'mmpretrain, SE': (lambda: mmpretrain_backbones.SEResNet(
        50, **TWO_STAGES), post_activation(gate=mmpretrain_se), 5, 2),
    'mmpretrain, Swin': (lambda: mmpretrain_backbones.SwinTransformer(
        dict(embed_dims=24, depths=[2, 2, 3, 1], num_heads=[1, 2, 4, 8]),
        img_size=32, pad_small_map=True), transformer, 10, 3),
    'mmdet, plugin': (with_plugin, post_activation(context_branch), 5, 2),
    'torchvision': (small_resnet, post_activation(), 3, 4),
    'timm, SE': (timm_seresnet, post_activation(gate=timm_se), 3, 4),
}


def outputs(model, x):
    out = model(x)
    return out if isinstance(out, (list, tuple)) else (out, )


@pytest.mark.parametrize('key', NETWORKS)
def test_networks(key):
    build, steps, count, stages = NETWORKS[key]
    model = ready(build())
    batches = IMAGES[:2], IMAGES[2:]
    with torch.no_grad():
        wanted = [outputs(model, x) for x in batches]
        with TrajectoryRecorder(model) as recorder:
            found = [outputs(model, x) for x in batches]
            of_copy = outputs(copy.deepcopy(model), batches[0])
    for a, b in zip([*wanted, wanted[0]], [*found, of_copy]):
        for x, y in zip(a, b):  # steps of ours leave their fused path
            assert torch.equal(x, y) or key.startswith('ours')
            torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)
    assert recorder.nsi.shape == (3, count)
    assert torch.equal(recorder.nsi, recorder.record['adaptive'])
    assert len(recorder.excluded) == stages
    assert all(name.endswith('.0') for name in recorder.excluded)
    assert no_hooks(model)
    assert_recorded(recorder, model, steps, *batches)
    containers = [block_of(n).rpartition('.')[0] for n in recorder.blocks]
    if 'Swin' in key:
        containers = [c.rpartition('.')[0] for c in containers]
    assert [containers.index(c) for c in containers] == [
        recorder.stages.tolist().index(s) for s in recorder.stages]
    # The same numbers for another memory format and dtype.
    with recorder, torch.no_grad():
        model.to(memory_format=torch.channels_last)
        model(IMAGES.contiguous(memory_format=torch.channels_last))
        model.double()
        model(IMAGES.double())
    for value in recorder.record.values():
        for other in (value[3:6], value[6:]):
            torch.testing.assert_close(value[:3], other, rtol=1e-4, atol=1e-6)


def test_resnet164_has_17_values_a_stage():
    model = ready(StepResNetCIFAR(164))
    recorder = recorded(model, IMAGES[:2])
    assert recorder.stages.bincount().tolist() == [17, 17, 17]
    assert_recorded(recorder, model, ours, IMAGES[:2])
