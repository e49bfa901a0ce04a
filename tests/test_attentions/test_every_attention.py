"""What holds for every attention."""

import copy
import math
import unittest.mock
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torch.nn as nn
from torch.autograd import gradcheck
from torch.func import functional_call

from mmstepnet.attentions import CBAM, build_attention, choose_step
from tests.test_attentions.conftest import ATTENTIONS
from tests.utils import not_on_torch_21, perturb


class Chooser(nn.Module):
    """An attention of either kind, called with the maps."""

    def __init__(self, attention):
        super().__init__()
        self.attention = attention

    def forward(self, x, f):
        return choose_step(self.attention, x, f)


def assert_finite_gradients(*tensors):
    gradients = [t.grad for t in tensors if t.grad is not None]
    assert gradients
    assert all(gradient.isfinite().all() for gradient in gradients)


def export(attention, inputs):
    sides = {2: torch.export.Dim('height'), 3: torch.export.Dim('width')}
    return torch.export.export(
        attention, inputs, dynamic_shapes=(sides, sides)).module()


def test_gradients(cfg, maps):
    C = 4
    attention = perturb(build_attention(cfg, C, map_size=7)).double().train()
    x, f = maps(3, C, 3, 5, dtype=torch.float64)
    names, parameters = zip(*attention.named_parameters())
    inputs = tuple(
        t.detach().double().requires_grad_() for t in (x, f, *parameters))

    def step(x, f, *parameters):
        values = {f'attention.{n}': p for n, p in zip(names, parameters)}
        return functional_call(Chooser(attention), values, (x, f))

    assert gradcheck(step, inputs)


@pytest.mark.parametrize('channels', [1, 10, 24, 96])
@pytest.mark.parametrize('size', [(1, 1), (5, 7), (14, 3)])
def test_one_image_of_any_size(cfg, channels, size, maps):
    attention = perturb(build_attention(cfg, channels, map_size=7)).eval()
    x, f = maps(3, channels, *size)
    x.requires_grad_()
    f.requires_grad_()
    step = choose_step(attention, x[:1], f[:1])
    assert step.shape[:2] == (1, channels)
    assert step.broadcast_to(f[:1].shape).shape == f[:1].shape
    assert step.min() > 0
    assert step.max() < 1
    # In eval mode an image does not see its batch.
    torch.testing.assert_close(step, choose_step(attention, x, f)[:1])
    step.sum().backward()
    assert_finite_gradients(x, f, *attention.parameters())


def test_constant_maps_have_finite_gradients(cfg):
    attention = perturb(build_attention(cfg, 8, map_size=7)).eval()
    x = torch.ones(2, 8, 4, 4, requires_grad=True)
    f = torch.full((2, 8, 4, 4), 2.0, requires_grad=True)
    choose_step(attention, x, f).sum().backward()
    assert_finite_gradients(x, f, *attention.parameters())


@pytest.mark.parametrize('dtype, atol', [(torch.float16, 2e-3),
                                         (torch.bfloat16, 2e-2)])
def test_half_precision(cfg, dtype, atol, maps):
    """Half inputs with float32 weights, as under AMP, and all in half."""
    attention = perturb(build_attention(cfg, 32, map_size=16)).eval()
    # The sum over a map is beyond float16.
    x, f = (4 * m.to(dtype) for m in maps(2, 32, 160, 160))
    assert x.float().sum((2, 3)).max() > torch.finfo(torch.float16).max
    expected = choose_step(attention, x.float(), f.float())

    step = choose_step(attention, x, f)
    assert step.dtype == dtype
    torch.testing.assert_close(step.float(), expected, rtol=0, atol=atol)

    try:
        step = choose_step(attention.to(dtype), x, f)
    except RuntimeError as error:
        # Half kernels on the CPU came with PyTorch 2.2.
        assert 'not implemented for' in str(error)
        pytest.skip(str(error))
    assert step.dtype == dtype
    torch.testing.assert_close(
        step.float(), expected, rtol=0, atol=20 * atol)


def test_channels_last(cfg, maps):
    attention = perturb(build_attention(cfg, 32, map_size=7)).eval()
    x, f = maps(2, 32, 7, 9)
    last = [m.contiguous(memory_format=torch.channels_last) for m in (x, f)]
    torch.testing.assert_close(
        choose_step(attention, *last), choose_step(attention, x, f))


def test_compiles_without_a_break(cfg, maps):
    attention = perturb(build_attention(cfg, 16, map_size=7)).eval()
    x, f = maps(2, 16, 7, 7)
    torch._dynamo.reset()
    compiled = torch.compile(
        Chooser(attention), backend='eager', fullgraph=True)
    torch.testing.assert_close(compiled(x, f), choose_step(attention, x, f))


@pytest.mark.filterwarnings('ignore::torch.jit.TracerWarning')
@pytest.mark.parametrize('trace', [
    torch.jit.trace,
    pytest.param(export, marks=not_on_torch_21('exports no dynamic shapes'))])
def test_graphs_serve_every_size(cfg, trace, maps):
    attention = perturb(build_attention(cfg, 16, map_size=9)).eval()
    graph = trace(Chooser(attention), maps(2, 16, 9, 9))
    for size in ((9, 9), (13, 20), (5, 7)):
        x, f = maps(2, 16, *size)
        torch.testing.assert_close(graph(x, f), choose_step(attention, x, f))


@pytest.mark.parametrize('init_step', [1.0, 0.37])
@pytest.mark.parametrize('training', [False, True])
def test_init_step_is_the_first_step(cfg, init_step, training, maps):
    attention = build_attention(
        dict(cfg, init_step=init_step), 48, map_size=7).train(training)
    step = choose_step(attention, *maps(3, 48, 6, 5))
    torch.testing.assert_close(
        step, torch.full_like(step, init_step), rtol=0, atol=1e-7)


@pytest.mark.parametrize('name, most', [
    ('StepNet', 1 + math.e), ('SE', 2), ('ECA', 2), ('SRM', 2), ('FCA', 2),
    ('CBAM', 4), ('SEM', 8), ('SGE', 1 + 1 / math.e)])
def test_most_that_a_warm_gate_reaches(name, most, maps):
    """With each sigmoid at 1; SEM's weights choose one as well."""
    attention = build_attention(
        dict(type=name, init_step=1.0), 64, map_size=7).eval()
    with unittest.mock.patch('torch.sigmoid', torch.ones_like):
        step = choose_step(attention, *maps(2, 64, 6, 5))
    torch.testing.assert_close(step, torch.full_like(step, most))


def test_init_step_survives_the_first_update(cfg, maps):
    """A warm start must not be lost at once, see SRM."""
    attention = build_attention(dict(cfg, init_step=1.0), 48, map_size=7)
    x, f = maps(8, 48, 6, 5)
    torch.manual_seed(0)
    (f * choose_step(attention, x, f) * torch.randn_like(f)).mean().backward()
    with torch.no_grad():
        for parameter in attention.parameters():
            if parameter.grad is not None:
                parameter -= 0.1 * parameter.grad
    # With the weights that the paper starts SRM from, it moves by 0.8.
    assert (choose_step(attention, x, f) - 1).abs().max() < 0.25


@pytest.mark.parametrize('channels, groups', [(64, 64), (256, 64), (96, 48),
                                              (16, 16), (130, 26), (7, 7)])
def test_sge_takes_the_largest_divisor(channels, groups):
    assert build_attention(dict(type='SGE'), channels).groups == groups


@pytest.mark.parametrize('name', ['SE', 'StepNet', 'SGE', 'FCA'])
def test_float64_is_float64(name, maps):
    """Start and basis are exact in it, also where the module was cast."""
    cfg = dict(type=name, init_step=1.0)
    attention = build_attention(cfg, 16, map_size=7).half().double()
    step = choose_step(attention, *maps(3, 16, 7, 7, dtype=torch.float64))
    assert (step == 1).all()
    if name == 'FCA':
        rows = np.cos(np.pi * 6 * (np.arange(7) + 0.5) / 7) * math.sqrt(2) / 7
        np.testing.assert_allclose(  # the third frequency, (6, 0)
            attention.basis[2], rows[:, None].repeat(7, 1), atol=1e-16)


WITH_BN = ('SRM', 'CBAM', 'StepNet', 'StepNet-cited', 'OursNormFirst',
           'OursMeanStd')


@pytest.fixture(params=WITH_BN)
def trained(request):
    """An attention with a BN, in training mode."""
    return perturb(build_attention(ATTENTIONS[request.param], 8)).train()


@pytest.mark.parametrize('compiled', [False, True])
@pytest.mark.parametrize('bad', [math.inf, math.nan, 1e30])
def test_statistics_that_are_not_finite_are_not_taken(
        trained, bad, compiled, maps):
    """Of a channel; the others go on, as BN's own formula has it."""
    torch._dynamo.reset()
    twin, call = copy.deepcopy(trained), Chooser(trained)
    if compiled:
        call = torch.compile(call, backend='aot_eager', fullgraph=True)
    before = {k: v.clone() for k, v in trained.named_buffers()}
    x, f = maps(4, 8, 3, 3)
    broken = f.clone()
    broken[1, 2, 0, 0] = bad
    call(x, broken)
    choose_step(twin, x, f)
    for key, value in trained.named_buffers():
        assert value.isfinite().all()
        if 'running' in key:
            other = dict(twin.named_buffers())[key]
            whole = isinstance(trained, CBAM)  # its one channel is over all
            held = torch.arange(len(value)) % 8 == 2
            if whole or key.startswith('pair_bn'):
                held = value == before[key]
                assert held.any()
            assert torch.equal(value[held], before[key][held])
            torch.testing.assert_close(value[~held], other[~held])


def test_frozen_gates_keep_their_statistics_in_threads(trained, maps):
    """Nothing of a shared module is switched on the way."""
    x, f = maps(3, 8, 3, 3)
    expected = choose_step(copy.deepcopy(trained).eval(), x, f).detach()
    state = copy.deepcopy(trained.state_dict())
    trained.requires_grad_(False)
    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(
            lambda _: choose_step(trained, x, f), range(60)))
    assert all(torch.equal(step, expected) for step in found)
    assert all(torch.equal(value, state[key])
               for key, value in trained.state_dict().items())


def test_an_average_over_all_batches(trained, maps):
    """PyTorch's update_bn, which has no momentum, of a frozen gate, too."""
    norm = next(m for m in trained.requires_grad_(False).modules()
                if getattr(m, 'running_mean', None) is not None)
    norm.momentum, seen = None, []
    norm.reset_running_stats()
    norm.register_forward_pre_hook(
        lambda module, inputs: seen.append(inputs[0]))
    for seed in range(3):
        choose_step(trained, *maps(4, 8, 3, 3, seed=seed))
    means = [values.transpose(0, 1).flatten(1).mean(1) for values in seen]
    torch.testing.assert_close(norm.running_mean, sum(means) / 3)


@pytest.mark.parametrize('kind, shape, eval_norm', [
    ('SRM', (1, 8, 4, 4), 'bn'), ('StepNet', (1, 8, 4, 4), 'bn'),
    ('OursNormFirst', (1, 8, 4, 4), 'pair_bn'), ('CBAM', (1, 8, 1, 1), 'bn')])
def test_batch_of_one_in_training(kind, shape, eval_norm, maps):
    attention = build_attention(dict(type=kind), 8)
    x, f = maps(*shape)
    with pytest.raises(ValueError, match='at least 2 images'):
        choose_step(attention, x, f)
    getattr(attention, eval_norm).eval()
    choose_step(attention, x, f)


@pytest.mark.parametrize('cfg, error, message', [
    (dict(type='StepNet', inputs='f'), ValueError, "one of .*got 'f'"),
    (dict(type='StepNet', iebn='bn'), ValueError, "iebn must be .*got 'bn'"),
    (dict(type='SGE', groups=0), ValueError, 'positive integer, got 0'),
    (dict(type='FCA'), ValueError, 'map_size.* got None'),
    (dict(type='FCA', map_size=6), ValueError, 'at least 7, got 6'),
    (dict(type='SE', init_step=-1), ValueError, 'init_step.*got -1'),
    (dict(type='Plain', init_step=0.5), ValueError, 'must be 1.*got 0.5'),
    (dict(type='SE', ratio=4), TypeError, 'ratio'),
    (dict(type='Nonsense'), KeyError, "'Nonsense' is unknown.*'StepNet'"),
    ('SE', TypeError, "got 'SE'"),
])
def test_refused(cfg, error, message):
    with pytest.raises(error, match=message):
        build_attention(cfg, 64)
