"""Bad input to attentions, to the residual step and to propagation."""

import inspect

import pytest
import torch
import torch.nn as nn
from hypothesis import given
from hypothesis import strategies as st

from mmstepnet.attentions import ATTENTIONS, build_attention, choose_step
from mmstepnet.propagation import metric_propagation
from mmstepnet.steps import ResidualStep, fused
from tests.test_robustness.inputs import (
    BOUNDED,
    NO_NUMBERS,
    NO_POSITIVE_INTEGERS,
    NO_POSITIVE_NUMBERS,
    NOT_FINITE,
    refused,
)
from tests.utils import perturb

KINDS = sorted(ATTENTIONS)

# What no value of this argument may be; every argument must have an entry.
WRONG = {
    'channels': NO_POSITIVE_INTEGERS,
    'reduction': NO_POSITIVE_INTEGERS,
    'groups': NO_POSITIVE_INTEGERS,
    'map_size': st.one_of(NO_POSITIVE_INTEGERS, st.integers(1, 6)),
    'init_step': NO_POSITIVE_NUMBERS,
    'inputs': st.one_of(NO_NUMBERS, st.none(), st.integers()).filter(
        lambda v: v not in ('both', 'x', 'x_next', 'difference')),
}


def arguments(cls):
    names = {
        name for base in cls.__mro__ if base.__module__.startswith('mmstepnet')
        for name in inspect.signature(base.__init__).parameters
    }
    # A layer takes any truth value for its bias, as PyTorch does.
    return sorted(names - {'self', 'args', 'kwargs', 'bias'})


@pytest.mark.parametrize('kind', KINDS)
@BOUNDED
@given(data=st.data())
def test_wrong_arguments_of_attentions(kind, data):
    name = data.draw(st.sampled_from(arguments(ATTENTIONS.find(kind))))
    value = data.draw(WRONG[name])
    kwargs = dict(type=kind)
    channels = 16
    if name == 'channels':
        channels = value
    else:
        kwargs[name] = value
    refused(name, lambda: build_attention(kwargs, channels, map_size=7))


@BOUNDED
@given(cfg=st.one_of(
    NO_NUMBERS, st.integers(), st.booleans(),
    st.builds(lambda t: dict(type=t), st.one_of(
        NO_NUMBERS, st.none(), st.just('mmstepnet.'), st.just('stepnet'),
        st.just('mmpretrain.SELayer'), st.just(nn.ReLU)))))
def test_wrong_configs(cfg):
    refused('attention', lambda: build_attention(cfg, 16), TypeError,
            KeyError)


@pytest.mark.parametrize('kind', KINDS)
@BOUNDED
@given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 40), st.integers(1, 9),
                    st.integers(1, 9)),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    training=st.booleans(), scale=st.sampled_from([1e-30, 1., 1e4]),
    layout=st.sampled_from([torch.contiguous_format, torch.channels_last]))
def test_any_shape_and_type(kind, shape, dtype, training, scale, layout):
    attention = perturb(build_attention(
        dict(type=kind), shape[1], map_size=8)).train(training)
    x, f = (scale * torch.randn(2, *shape)).to(dtype).unbind(0)
    x, f = (t.contiguous(memory_format=layout) for t in (x, f))
    try:
        step = choose_step(attention, x, f)
    except ValueError as error:
        # A channel's only value has no variance.
        assert 'at least 2 images' in str(error)
        assert training and shape[0] == 1
        return
    assert step.dtype == dtype
    assert step.broadcast_to(f.shape).isfinite().all()
    assert 0 <= step.min() and step.max() <= 1


@pytest.mark.parametrize('kind', KINDS)
@BOUNDED
@given(data=st.data())
def test_what_is_not_finite_stays_visible(kind, data):
    """In its own image, whichever number it is; the others do not change."""
    shape = data.draw(st.tuples(st.integers(2, 3), st.integers(2, 20),
                                st.integers(1, 8), st.integers(1, 8)))
    place = tuple(data.draw(st.integers(0, size - 1)) for size in shape)
    value = data.draw(NOT_FINITE)
    attention = perturb(build_attention(dict(type=kind), shape[1], map_size=7))
    step = ResidualStep(attention).eval()
    x, f = torch.randn(2, *shape).unbind(0)
    expected = step(x, f)
    data.draw(st.sampled_from([x, f]))[place] = value
    out = step(x, f)
    assert not out[place[0]].isfinite().all()
    others = [n for n in range(shape[0]) if n != place[0]]
    assert torch.equal(out[others], expected[others])


@BOUNDED
@given(data=st.data())
def test_fused_step_shows_what_the_reference_shows(data):
    shape = data.draw(st.tuples(st.integers(2, 3), st.integers(2, 20),
                                st.integers(2, 8), st.integers(2, 8)))
    place = tuple(data.draw(st.integers(0, size - 1)) for size in shape)
    kind = data.draw(st.sampled_from(KINDS))
    attention = perturb(build_attention(dict(type=kind), shape[1], map_size=7))
    norm = perturb(nn.BatchNorm2d(shape[1]))
    step = ResidualStep(attention, nn.ReLU()).train(data.draw(st.booleans()))
    norm.train(step.training)
    x, f = torch.randn(2, *shape).unbind(0)
    data.draw(st.sampled_from([x, f]))[place] = float('nan')
    broken = []
    for fast in (False, True):
        with fused(fast):
            broken.append(~step(x, f, norm).isfinite().flatten(2).all(2))
    assert broken[0].any()
    assert torch.equal(*broken)


@BOUNDED
@given(data=st.data())
def test_propagation_shows_nan(data):
    """To every point that it informs."""
    nodes, width = data.draw(st.tuples(st.integers(2, 40), st.integers(1, 9)))
    tensors = list(torch.randn(3, 2, nodes, width))
    which = data.draw(st.integers(0, 2))
    node = data.draw(st.integers(0, nodes - 1))
    tensors[which][1, node, data.draw(st.integers(0, width - 1))] = (
        float('nan'))
    is_causal = data.draw(st.booleans())
    for tensor in tensors:
        tensor.requires_grad_(data.draw(st.booleans()))
    out = metric_propagation(*tensors, 1.0, is_causal=is_causal)
    expected = torch.zeros(2, nodes, dtype=torch.bool)
    expected[1, slice(node, node + 1) if which == 0 else slice(
        node if is_causal else 0, None)] = True
    got = out.isnan().any(-1)
    if is_causal:
        # A kernel may multiply by the weight 0 what is later.
        assert (got >= expected).all() and not got[0].any()
    else:
        assert torch.equal(got, expected)


@BOUNDED
@given(
    shapes=st.tuples(*[
        st.lists(st.integers(0, 3), max_size=4).map(tuple) for _ in range(3)
    ]))
def test_propagation_of_any_shapes(shapes):
    """What does not fit is refused; what fits has the promised shape."""
    a, b, v = (torch.randn(shape) for shape in shapes)
    fits = (min(map(len, shapes)) > 1 and 0 not in sum(shapes, ())
            and shapes[0][:-2] == shapes[1][:-2] == shapes[2][:-2]
            and shapes[0][-1] == shapes[1][-1]
            and shapes[1][-2] == shapes[2][-2])
    if fits:
        out = metric_propagation(a, b, v, 1.0)
        assert out.shape == (*shapes[0][:-1], shapes[2][-1])
        assert out.isfinite().all()
    else:
        refused(str(tuple(shapes[0])),
                lambda: metric_propagation(a, b, v, 1.0))
