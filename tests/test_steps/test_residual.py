import copy
import pickle

import pytest
import torch
import torch.nn as nn

from mmstepnet.attentions import SE, Plain, StepNet, choose_step
from mmstepnet.steps import ResidualStep
from tests.utils import perturb


def states(channels=8, **kwargs):
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(5, channels, 6, 7, generator=generator).to(**kwargs)
            for _ in range(2)]


def written_out_adaptor(attention, x, f):
    """Eq. 12 as it stands: x + f is formed, then pooled, pair by pair."""
    x_next = x + f
    p, q = x.mean((2, 3)), x_next.mean((2, 3))
    conv = nn.Conv2d(16, 8, 1, groups=8, bias=False, dtype=x.dtype)
    conv.weight.data = attention.pair_weight.data.view(8, 2, 1, 1)
    pairs = torch.stack([p, q], 2).reshape(len(x), 16, 1, 1)
    z = conv(pairs)[:, :, 0, 0]
    if attention.training:
        mean, var = z.mean(0), z.var(0, unbiased=False)
    else:
        mean, var = attention.bn.running_mean, attention.bn.running_var
    z = (z - mean) / (var + attention.bn.eps).sqrt()
    z = z * attention.bn.weight + attention.bn.bias
    logit = attention.ie_weight * z + attention.ie_bias
    return 1 / (1 + torch.exp(-logit))


@pytest.mark.parametrize('training', [True, False])
@pytest.mark.parametrize('init_step', [None, 1.0, 0.3])
def test_adaptor_against_a_written_out_one(training, init_step):
    attention = perturb(StepNet(8, init_step=init_step).double())
    attention.train(training)
    x, f = states(dtype=torch.float64)
    expected = written_out_adaptor(attention, x, f)
    if init_step is not None:
        expected = expected * init_step * (1 + torch.e)  # / sigmoid(-1)
    got = choose_step(attention, x, f)
    assert got.shape == (5, 8, 1, 1)
    torch.testing.assert_close(got[:, :, 0, 0], expected, rtol=1e-6, atol=0)


def test_adaptor_gradients():
    attention = perturb(StepNet(3).double()).train()
    x, f = torch.randn(2, 4, 3, 2, 2, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x, f: choose_step(attention, x, f), (x, f))


@pytest.mark.parametrize('attention', [None, Plain(8), SE(8), StepNet(8)])
@pytest.mark.parametrize('activation', [None, nn.ReLU(inplace=True)])
def test_step_is_the_equation(attention, activation):
    x, c = states()
    norm = perturb(nn.BatchNorm2d(8)).eval()
    step = ResidualStep(attention, activation)
    if attention is not None:
        perturb(attention).eval()
    f = norm(c)
    expected = x + f * (
        1 if attention is None else choose_step(attention, x, f))
    if activation is not None:
        expected = expected.clamp(min=0)
    torch.testing.assert_close(step(x, c, norm), expected)


@pytest.mark.parametrize('attention', [None, SE(8)])
def test_observer_sees_the_step_before_and_after_the_activation(attention):
    x, c = states()
    step = ResidualStep(attention, nn.ReLU(inplace=True))
    seen = []

    def observer(module, x_t, f, delta, out):
        assert module is step
        seen.append([t if t is None else t.clone()
                     for t in (x_t, f, delta, out)])

    handle = step.observe(observer)
    out = step(x, c)
    (x_t, f, delta, returned), = seen
    assert torch.equal(x_t, x) and torch.equal(f, c)
    assert (delta is None) == (attention is None)
    delta = 1 if delta is None else delta
    x_next = x + c * delta
    assert (x_next < 0).any()
    torch.testing.assert_close(returned, x_next.relu())
    assert torch.equal(returned, out)
    handle.remove()
    step(x, c)
    assert len(seen) == 1


def test_copies_are_not_observed():
    step = ResidualStep()
    step.observe(lambda *args: pytest.fail('a copy was observed'))
    x, c = states()
    copy.deepcopy(step)(x, c)
    step = ResidualStep()
    step.observe(print)
    assert not pickle.loads(pickle.dumps(step))._observers


@pytest.mark.parametrize('init_step', [0, -1.0, float('nan'), float('inf')])
def test_impossible_init_step(init_step):
    with pytest.raises(ValueError, match='init_step must be a positive'):
        StepNet(8, init_step=init_step)


@pytest.mark.parametrize('channels', [0, -4, 2.5, None])
def test_impossible_channels(channels):
    with pytest.raises(ValueError, match='channels must be a positive'):
        SE(channels)


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_pooling_does_not_overflow_in_half_precision(dtype):
    """The sum over this map is beyond float16's 65504."""
    attention = perturb(StepNet(8)).eval()
    x, f = (torch.full((2, 8, 64, 64), v, dtype=dtype) for v in (60., -20.))
    got = choose_step(attention, x, f)
    assert got.dtype == dtype and got.isfinite().all()
    expected = choose_step(attention, x.float(), f.float())
    torch.testing.assert_close(got.float(), expected, rtol=1e-2, atol=1e-3)
