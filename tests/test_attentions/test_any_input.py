"""Any input to attentions and to the residual step."""

import pytest
import torch
import torch.nn as nn
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mmstepnet.attentions import ATTENTIONS, build_attention, choose_step
from mmstepnet.steps import ResidualStep, fused
from tests.utils import perturb

KINDS = sorted(ATTENTIONS)
NOT_FINITE = st.sampled_from([float('nan'), float('inf'), -float('inf')])
BOUNDED = settings(
    deadline=None, derandomize=True, database=None, max_examples=40,
    suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize('argument, wrong', [
    (argument, wrong) for argument in (
        'channels', 'reduction', 'groups', 'init_step')
    for wrong in (0, -1, 'x', [], float('nan'))])
def test_wrong_arguments(argument, wrong):
    kinds = dict(reduction='SE', groups='SGE').get(argument, 'StepNet')
    kwargs = {'channels': 16, argument: wrong}
    with pytest.raises(ValueError, match=argument):
        build_attention(dict(type=kinds, **{
            k: v for k, v in kwargs.items() if k != 'channels'}),
            kwargs['channels'])


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
