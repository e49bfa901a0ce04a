"""Networks of the hosts against an evaluation that keeps all features."""

import copy

import pytest
import torch
from mmpretrain.models.backbones import SEResNet, SwinTransformer

from mmstepnet.models import StepResNetCIFAR, StepVisionTransformer
from mmstepnet.stiffness import TrajectoryRecorder
from tests.test_stiffness.reference import (
    IMAGES,
    ONE,
    assert_recorded,
    our_step,
    post_activation,
    ready,
)
from tests.utils import no_hooks, same


def mmpretrain_se(block, x, f):
    se = block.se_layer
    return se.conv2(se.conv1(f.mean((2, 3), keepdim=True)))


def preact(block, x):
    f = x
    for k, conv in enumerate(block.convs, 1):
        f = conv(getattr(block, getattr(block, f'norm{k}_name'))(f).relu())
    return [(x, f, our_step(block, x, f))]


def transformer(block, x, *shape):
    norms = ('ln1', 'ln2') if hasattr(block, 'ln1') else ('norm1', 'norm2')
    f, step = block.attn(getattr(block, norms[0])(x), *shape), ONE
    if hasattr(block, 'step'):  # it is the attention of ours
        maps = [t.transpose(1, 2)[..., None] for t in (x, f)]
        step = our_step(block, *maps)[..., 0].transpose(1, 2)
    y = x + f * step
    return [
        (x, f, step),
        (y, block.ffn.layers(getattr(block, norms[1])(y)), ONE),
    ]


ours = post_activation(gate=our_step)
NETWORKS = {  # how it is built, its steps, how many in each stage, stages
    'ours, StepNet': (lambda: StepResNetCIFAR(20), ours, [2, 2, 2], 3),
    'ours, ResNet-164': (lambda: StepResNetCIFAR(164), ours, [17, 17, 17], 3),
    'ours, preact': (
        lambda: StepResNetCIFAR(20, preact=True),
        preact,
        [2, 2, 2],
        3,
    ),
    'ours, ViT': (
        lambda: StepVisionTransformer('deit-tiny', img_size=32, patch_size=8),
        transformer,
        [22],
        1,
    ),
    'mmpretrain, SE': (
        lambda: SEResNet(
            50,
            num_stages=2,
            strides=(1, 2),
            dilations=(1, 1),
            out_indices=(1,),
        ),
        post_activation(gate=mmpretrain_se),
        [2, 3],
        2,
    ),
    'mmpretrain, Swin': (
        lambda: SwinTransformer(
            dict(embed_dims=24, depths=[2, 2, 3, 1], num_heads=[1, 2, 4, 8]),
            img_size=32,
            pad_small_map=True,
        ),
        transformer,
        [2, 2, 4, 2],
        3,
    ),
}


@pytest.mark.parametrize('key', NETWORKS)
def test_networks(key):
    build, steps, counts, stages = NETWORKS[key]
    model, images = ready(build()).double(), IMAGES.double()
    batches = images[:2], images[2:]
    with torch.no_grad():
        wanted = [model(x) for x in (*batches, images[:2])]
        with TrajectoryRecorder(model) as recorder:
            found = [model(x) for x in batches]
            found.append(copy.deepcopy(model)(batches[0]))
    if key.startswith('ours'):  # steps leave their fused path
        same(found, wanted)
    else:
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    assert recorder.nsi.shape == (3, sum(counts))
    assert recorder.stages.tolist() == [
        s for s, count in enumerate(counts) for _ in range(count)
    ]
    assert len(recorder.excluded) == stages
    assert all(name.endswith('.0') for name in recorder.excluded)
    assert no_hooks(model)
    assert_recorded(recorder, model, steps, *batches)
    # The same numbers for another memory format and dtype.
    with recorder, torch.no_grad():
        model.to(memory_format=torch.channels_last)
        model(images.contiguous(memory_format=torch.channels_last))
        model.float()
        model(IMAGES)
    for value in recorder.record.values():
        exact, last, single = value.split(3)
        # Recorded in float32; a network rounds by more.
        torch.testing.assert_close(last, exact, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(single, exact, rtol=1e-3, atol=1e-6)
