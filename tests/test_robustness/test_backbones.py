"""Bad input to backbones."""

from pathlib import PurePath

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmstepnet.models import (
    PropagationVisionTransformer,
    StepResNet,
    StepResNetCIFAR,
    StepResNeXt,
    StepVisionTransformer,
)
from mmstepnet.stiffness import TrajectoryRecorder
from tests.test_robustness.inputs import (
    BOUNDED,
    NO_NUMBERS,
    NOT_FINITE,
    refused,
)
from tests.utils import perturb

TINY_VIT = dict(embed_dims=16, num_layers=3, num_heads=2,
                feedforward_channels=24)
NARROW = dict(stem_channels=8, base_channels=4)

NO_SWITCH = st.one_of(NO_NUMBERS, st.integers(2), st.floats(1.5))
NO_STAGES = st.one_of(
    NO_NUMBERS.filter(lambda v: v != [2, 3]), st.none(), st.integers(),
    st.lists(st.integers(4) | st.integers(max_value=-1), min_size=1))


def no_pattern(value):
    """Whether it names no block: '0' and '*' do, as patterns."""
    return not isinstance(value, str) or not value or not any(
        PurePath(name).match(value.replace('.', '/')) for name in (
            'layer1', 'layer2', 'layer3', 'layer4', 'layer1/0', 'layer1/1',
            'layer1/2', 'layer2/3', 'layer3/4', 'layer3/5'))


WRONG = {
    'depth': st.one_of(NO_NUMBERS, st.none(), st.integers(-5, 17)),
    'blocks': st.one_of(
        NO_NUMBERS.filter(no_pattern), st.integers(), st.floats(),
        st.lists(st.one_of(st.text().filter(no_pattern), st.integers(),
                           st.none()), min_size=1),
        st.sampled_from([['layer1.9'], ['layer5'], ['layer1.-1'],
                         ['backbone.layer1.0'], ['layer1', 'layer9.0']])),
    'first_block': NO_SWITCH,
    'preact': st.one_of(NO_SWITCH, st.none()),
    'zero_init_residual': st.one_of(NO_SWITCH, st.none()),
    'out_indices': NO_STAGES,
    'frozen_stages': st.one_of(NO_NUMBERS, st.none(), st.integers(5),
                               st.integers(max_value=-2)),
    'num_stages': st.one_of(NO_NUMBERS, st.none(), st.integers(5),
                            st.integers(max_value=0)),
    'attention': st.one_of(
        NO_NUMBERS, st.integers(), st.just(dict(type='SENet')),
        st.just(dict(name='StepNet'))),
}


@pytest.mark.parametrize('cls', [StepResNet, StepResNetCIFAR, StepResNeXt])
@settings(BOUNDED, max_examples=60)
@given(data=st.data())
def test_wrong_arguments(cls, data):
    names = sorted(WRONG)
    if cls is StepResNeXt:
        names.remove('preact')  # there is none
    name = data.draw(st.sampled_from(names))
    kwargs = dict(depth=20 if cls is StepResNetCIFAR else 50,
                  host='mmpretrain', **NARROW)
    if cls is StepResNeXt:
        del kwargs['base_channels']
    kwargs[name] = data.draw(WRONG[name])
    refused(name, lambda: cls(**kwargs), ValueError, TypeError, KeyError)


@settings(BOUNDED, max_examples=60)
@given(
    depth=st.sampled_from([18, 50]),
    preact=st.booleans(),
    attention=st.sampled_from([None, 'StepNet', 'SE', 'CBAM', 'FCA', 'SGE']),
    first_block=st.sampled_from([None, True, False]),
    frozen=st.integers(-1, 4),
    out_indices=st.lists(st.integers(0, 3), min_size=1, unique=True).map(
        sorted),
    with_cp=st.booleans(), norm_eval=st.booleans(),
    size=st.tuples(st.integers(1, 70), st.integers(1, 70)),
    batch=st.integers(2, 3))
def test_any_setting_and_image(depth, preact, attention, first_block, frozen,
                               out_indices, with_cp, norm_eval, size, batch):
    """Every combination trains on images of any size."""
    model = StepResNet(
        depth, preact=preact, attention=attention and dict(type=attention),
        first_block=first_block, frozen_stages=frozen, host='mmpretrain',
        out_indices=out_indices, with_cp=with_cp, norm_eval=norm_eval,
        **NARROW).train()
    outs = model(torch.randn(batch, 3, *size))
    assert len(outs) == len(out_indices)
    for index, out in zip(out_indices, outs):
        stride = 2**(index + 2)
        assert out.shape[0] == batch
        assert out.shape[2:] == tuple(-(-side // stride) for side in size)
        assert out.isfinite().all()
    if outs[-1].requires_grad:
        sum(out.sum() for out in outs).backward()
        assert all(p.grad.isfinite().all() for p in model.parameters()
                   if p.grad is not None)


def networks():
    cifar = StepResNetCIFAR(20)
    vit = dict(arch=TINY_VIT, img_size=16, patch_size=4)
    return {
        'ResNet': StepResNet(18, host='mmpretrain', **NARROW),
        'preact': StepResNetCIFAR(20, preact=True),
        'IEBN': StepResNetCIFAR(20, attention=None,
                                norm_cfg=dict(type='mmstepnet.IEBN')),
        'CIFAR': cifar,
        'ViT': StepVisionTransformer(**vit),
        'PropagationViT': PropagationVisionTransformer(**vit),
    }


@pytest.fixture(scope='module', params=networks())
def network(request):
    return perturb(networks()[request.param]).eval()


@settings(BOUNDED, max_examples=40)
@given(data=st.data())
def test_a_pixel_that_is_not_finite(network, data):
    """Shows in its own image's features, and ends a recording."""
    images = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        expected, = network(images)
    place = tuple(data.draw(st.integers(0, n - 1)) for n in images.shape)
    images[place] = data.draw(NOT_FINITE)
    with torch.no_grad():
        out, = network(images)
    assert not out[place[0]].isfinite().all()
    torch.testing.assert_close(out[1 - place[0]], expected[1 - place[0]])
    with TrajectoryRecorder(network) as recorder, torch.no_grad():
        message = refused('NaN or infinite', lambda: network(images))
    assert f'sample {place[0]} at block ' in message
    assert len(recorder) == 0


@settings(BOUNDED, max_examples=40)
@given(data=st.data())
def test_a_weight_that_is_not_finite(network, data):
    """Is seen in the features of every image."""
    weights = dict(network.named_parameters())
    name = data.draw(st.sampled_from(sorted(weights)))
    weight = weights[name].detach().view(-1)
    index = data.draw(st.integers(0, len(weight) - 1))
    kept = weight[index].clone()
    # Else a kernel's corner may meet nothing but padding.
    side = 96 if type(network).__name__ == 'StepResNet' else 16
    weight[index] = float('nan')
    try:
        with torch.no_grad():
            out, = network(torch.randn(2, 3, side, side))
    finally:
        weight[index] = kept
    assert not out.isfinite().flatten(1).all(1).any(), name


@settings(BOUNDED, max_examples=25)
@given(
    shape=st.one_of(
        st.lists(st.integers(0, 4), max_size=6).map(tuple),
        st.tuples(st.integers(1, 2), st.sampled_from([0, 1, 2, 4]),
                  st.just(16), st.just(16))),
    dtype=st.sampled_from([
        torch.float32, torch.uint8, torch.int64, torch.bool, torch.complex64
    ]))
def test_images_of_wrong_shape_or_type(network, shape, dtype):
    """PyTorch's and the hosts' errors; nothing is computed."""
    if len(shape) == 4 and shape[1] == 3 and dtype == torch.float32:
        return
    images = torch.zeros(shape, dtype=dtype)
    with pytest.raises((RuntimeError, ValueError, TypeError, IndexError,
                        AssertionError, NotImplementedError)):
        network(images)
