"""The fused residual step against the reference path."""

import copy
import gc
import itertools

import numpy as np
import pytest
import torch

from mmstepnet import steps
from mmstepnet.attentions import SE, SEM, SRM, StepNet
from mmstepnet.steps.vectors import join
from tests.test_steps.cases import (
    FORMATS,
    away_from_kink,
    build,
    inputs,
    run,
    worst,
)


@pytest.mark.parametrize('attention', [StepNet, SE, SRM, SEM])
@pytest.mark.parametrize('training', [True, False])
@pytest.mark.parametrize('memory_format', FORMATS)
@pytest.mark.parametrize('relu,norm', [(True, True), (False, False)])
def test_equals_reference_in_float64(attention, training, memory_format, relu,
                                     norm, calls):
    torch.manual_seed(0)
    step, norm = build(attention, 6, relu, norm)
    for module in (step, norm):
        if module is not None:
            module.double().train(training)
    for shape in ((2, 6, 7, 5), (5, 6, 3, 3), (64, 6, 1, 2)):
        args = inputs(shape, memory_format=memory_format)
        error, name = worst(
            run(True, step, norm, *args), run(False, step, norm, *args))
        assert error < 1e-10, (shape, name)
    assert len(calls) == 3


@pytest.mark.parametrize('attention', [StepNet, SE, SRM, SEM])
def test_a_step_is_freed_after_the_backward(attention, calls):
    """At once, without Python's collector; a network takes millions."""
    step, norm = build(attention, 6)

    def take():
        x, c, grad = inputs((2, 6, 4, 4), torch.float32)
        x.requires_grad_()
        step(x, c.requires_grad_(), norm).backward(grad)

    def alive():
        return sum(isinstance(o, torch.Tensor) or 'Tail' in type(o).__name__
                   for o in gc.get_objects())
    take()  # parameters get their gradients
    gc.collect()
    gc.disable()
    try:
        before = alive()
        take()
        after = alive()
    finally:
        gc.enable()
    assert len(calls) == 2 and after == before


def test_one_image_in_eval(calls):
    torch.manual_seed(0)
    step, norm = build(StepNet, 5)
    step.double().eval()
    norm.double()
    for norm_training in (True, False):
        norm.train(norm_training)
        args = inputs((1, 5, 9, 4))
        error, name = worst(
            run(True, step, norm, *args), run(False, step, norm, *args))
        assert error < 1e-10, name
    assert len(calls) == 2


@pytest.mark.parametrize('span', [1, 7, 10, 35])
def test_spans_of_a_map_are_joined(span):
    """Of unequal means and lengths, the last span being shorter."""
    x, c = np.random.default_rng(0).normal(size=(2, 3, 5, 35)).cumsum(-1)
    parts = [c[..., k:k + span] for k in range(0, 35, span)]
    sums = [x[..., k:k + span].sum(-1) for k in range(0, 35, span)]
    got = join([torch.from_numpy(np.stack(t)) for t in (
        sums, [part.mean(-1) for part in parts],
        [part.var(-1) * part.shape[-1] for part in parts])], 35, span)
    for a, b in zip(got, (x.mean(-1), c.mean(-1), c.var(-1))):
        np.testing.assert_allclose(a, b, rtol=1e-12)


@pytest.mark.parametrize('memory_format', FORMATS)
@pytest.mark.parametrize('dtype,tolerance', [(torch.float32, 1e-5),
                                             (torch.bfloat16, 2e-2)])
def test_equals_exact_in_low_precision(dtype, tolerance, memory_format):
    """Against the reference in float64, on the same rounded inputs."""
    torch.manual_seed(1)
    shapes = (4, 16, 9, 7), (8, 16, 14, 14)
    for attention, shape in itertools.product((StepNet, SE), shapes):
        step, norm = build(attention, 16)
        x, c, grad = inputs(shape, dtype, memory_format)
        margin = 1e-4 if dtype == torch.float32 else 0.1
        grad = away_from_kink(step, norm, x, c, grad, margin)
        exact = run(False, step, norm, x, c, grad, torch.float64)
        got = run(True, step, norm, x, c, grad)
        error, name = worst(got, exact)
        assert error < tolerance, (attention, shape, name)
        assert got['out'].dtype == dtype


@pytest.mark.parametrize('memory_format', FORMATS)
def test_large_channel_means(memory_format):
    """E[c^2] - E[c]^2 would keep two digits at a mean of 500 deviations."""
    torch.manual_seed(0)
    step, norm = build(SE, 8)
    x, c, grad = inputs((4, 8, 12, 12), torch.float32, memory_format, 0.0)
    c = c + torch.logspace(0, 3, 8)[:, None, None]
    grad = away_from_kink(step, norm, x, c, grad, 0.05)
    exact = run(False, step, norm, x, c, grad, torch.float64)
    got = run(True, step, norm, x, c, grad)
    assert worst({'v': got['norm.running_var']},
                 {'v': exact['norm.running_var']})[0] < 1e-5
    # float32 holds the mean itself to 500 eps = 6e-5 deviations.
    error, name = worst(got, exact)
    assert error < 1e-4, name


@pytest.mark.parametrize('momentum', [0.1, 0.3, None])
def test_running_statistics(momentum):
    torch.manual_seed(0)
    step, norm = build(SE, 4, momentum=momentum)
    ends, norms = {}, {}
    for fused in (True, False):
        ends[fused], norms[fused] = copy.deepcopy((step, norm))
        norms[fused].double()
        ends[fused].double()
    for _ in range(3):
        x, c, _ = inputs((2, 4, 3, 5))
        for fused in (True, False):
            with steps.fused(fused):
                ends[fused](x, c, norms[fused])
    for a, b in zip(norms[True].buffers(), norms[False].buffers()):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    assert norms[True].num_batches_tracked == 3


def test_norm_without_running_statistics(calls):
    torch.manual_seed(0)
    step, norm = build(SE, 4, track_running_stats=False)
    step.double()
    norm.double().eval()
    args = inputs((2, 4, 3, 5))
    error, name = worst(
        run(True, step, norm, *args), run(False, step, norm, *args))
    assert error < 1e-10, name
    assert calls


def test_frozen_norm_and_attention(calls):
    """As in detection: norm_eval and the weights of the norms frozen."""
    torch.manual_seed(0)
    step, norm = build(StepNet, 4)
    step.double().eval().requires_grad_(False)
    norm.double().eval().requires_grad_(False)
    args = inputs((2, 4, 3, 5))
    got, expected = (run(fused, step, norm, *args) for fused in (True, False))
    for key in ('out', 'x', 'c'):
        torch.testing.assert_close(got[key], expected[key], rtol=1e-10,
                                   atol=1e-12)
    assert got['norm.weight'] is None
    assert torch.equal(got['norm.running_mean'], norm.running_mean)
    assert len(calls) == 1


def test_autocast(calls):
    torch.manual_seed(0)
    for attention in (StepNet, SE):
        step, norm = build(attention, 8)
        x, c, grad = inputs((4, 8, 6, 6), torch.bfloat16)
        grad = away_from_kink(step, norm, x, c, grad, 0.1)
        with torch.autocast('cpu', torch.bfloat16):
            got = run(True, step, norm, x, c, grad)
            exact = run(False, step, norm, x, c, grad)
        assert got['out'].dtype == torch.bfloat16
        assert worst({'o': got['out']}, {'o': exact['out']})[0] < 2e-2
        assert worst({'o': got['c']}, {'o': exact['c']})[0] < 5e-2
        assert got['norm.weight'].dtype == torch.float32
    assert len(calls) == 2


def test_mixed_memory_formats(calls):
    torch.manual_seed(0)
    step, norm = build(StepNet, 6)
    step.double()
    norm.double()
    x, c, grad = inputs((2, 6, 4, 5))
    expected = run(False, step, norm, x, c, grad)
    last = [t.contiguous(memory_format=FORMATS[1]) for t in (x, c, grad)]
    strided = torch.zeros(2, 6, 8, 5).double()[:, :, ::2].copy_(c)
    for args in ((last[0], c, grad), (x, last[1], grad), (x, c, last[2]),
                 (x, strided, grad)):
        error, name = worst(run(True, step, norm, *args), expected)
        assert error < 1e-10, name


@pytest.mark.parametrize('attention', [StepNet, SE, SRM])
@pytest.mark.parametrize('memory_format', FORMATS)
def test_torchvisions_frozen_norm(attention, memory_format, calls):
    """What its detectors have for every norm."""
    ops = pytest.importorskip('torchvision.ops', reason='needs torchvision')
    torch.manual_seed(0)
    step, _ = build(attention, 6)
    norm = ops.FrozenBatchNorm2d(6)
    for name, buffer in norm.named_buffers():
        buffer.uniform_(0.5, 2) if 'var' in name else buffer.normal_()
    step.double()
    norm.double()
    for shape in ((2, 6, 7, 5), (5, 6, 3, 3)):
        args = inputs(shape, memory_format=memory_format)
        error, name = worst(
            run(True, step, norm, *args), run(False, step, norm, *args))
        assert error < 1e-10, (shape, name)
    assert len(calls) == 2
