"""The fused residual step gives what the reference path gives."""

import copy
import itertools

import pytest
import torch
import torch.nn as nn

from mmstepnet import steps
from mmstepnet.attentions import StepNet
from tests.test_steps.cases import (
    FORMATS,
    GATES,
    NORMS,
    away_from_kink,
    build,
    build_modes,
    inputs,
    run,
    worst,
)
from tests.utils import TORCH_21

SHAPES = ((3, 6, 7, 5), (5, 6, 3, 3), (64, 6, 1, 2), (3, 6, 1, 1),
          (4, 6, 33, 31), (4, 1, 5, 9), (3, 130, 6, 7))
"""From three images on: a BN over two is all but constant."""

HALF = [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.skipif(
    TORCH_21, reason='this BN takes no float16 on a CPU'))]


@pytest.mark.parametrize('memory_format', FORMATS)
@pytest.mark.parametrize('norm', NORMS)
@pytest.mark.parametrize('gate', GATES)
@pytest.mark.parametrize('relu', [True, False])
def test_equals_reference_in_float64(norm, gate, memory_format, relu, calls):
    torch.manual_seed(0)
    for shape in SHAPES:
        modules = build_modes(norm, gate, shape[1], relu)
        args = inputs(shape, memory_format=memory_format)
        got, expected = (run(fused, *modules, *args)
                         for fused in (True, False))
        error, name = worst(got, expected)
        assert error < 1e-12, (shape, name)
        assert got['out'].stride() == args[1].stride()
    assert len(calls) == len(SHAPES)


@pytest.mark.parametrize('memory_format', FORMATS)
@pytest.mark.parametrize('norm,gate', itertools.product(
    ('batch', 'running', 'none'), ('running', 'folded')))
def test_one_image(norm, gate, memory_format, calls):
    torch.manual_seed(0)
    modules = build_modes(norm, gate)
    args = inputs((1, 6, 9, 4), memory_format=memory_format)
    error, name = worst(*(run(f, *modules, *args) for f in (True, False)))
    assert error < 1e-12, name
    assert len(calls) == 1


def test_two_images_in_training(calls):
    """Their gate's BN gives 1 and -1, and no gradient but rounding's."""
    torch.manual_seed(0)
    modules = build_modes('batch', 'batch')
    args = inputs((2, 6, 5, 4))
    got, expected = (run(f, *modules, *args) for f in (True, False))
    for key, value in expected.items():
        torch.testing.assert_close(got[key], value, rtol=1e-10, atol=1e-10)
    assert len(calls) == 1


@pytest.mark.parametrize('memory_format', FORMATS)
@pytest.mark.parametrize('dtype', HALF)
@pytest.mark.parametrize('whole', [False, True])
@pytest.mark.parametrize('norm', NORMS)
@pytest.mark.parametrize('gate', ['batch', 'running', 'folded'])
def test_half_precision(norm, gate, whole, dtype, memory_format, calls):
    """Maps alone, as under autocast, or the whole model; against float64 on
    the same rounded numbers."""
    torch.manual_seed(1)
    modules = build_modes(norm, gate)
    for module in modules:
        if module is not None:
            module.to(dtype if whole else torch.float32)
    args = inputs((8, 6, 14, 13), dtype, memory_format)
    args[2] = away_from_kink(*modules, *args, 0.1)
    exact = run(False, *modules, *args, torch.float64)
    got = run(True, *modules, *args)
    error, name = worst(got, exact)
    assert error < 3 * torch.finfo(dtype).eps, name
    assert got['out'].dtype == dtype
    assert len(calls) == 1


@pytest.mark.parametrize('momentum', [0.1, 0.3, 1.0])
@pytest.mark.parametrize('eps', [1e-5, 1e-3])
def test_running_statistics(momentum, eps, calls):
    """Of both norms, over some steps."""
    torch.manual_seed(0)
    step, norm = build_modes('batch', 'batch')
    for bn in (norm, step.attention.bn):
        bn.momentum, bn.eps = momentum, eps
    twins = {fused: copy.deepcopy((step, norm)) for fused in (True, False)}
    for _ in range(3):
        x, c, _ = inputs((3, 6, 3, 5))
        for fused, (taken, norm) in twins.items():
            with steps.fused(fused):
                taken(x, c, norm)
    for a, b in zip(*(nn.ModuleList(t).buffers() for t in twins.values())):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    assert twins[True][1].num_batches_tracked == 3
    assert len(calls) == 3


def test_frozen_norm_and_attention(calls):
    """As in detection: norm_eval and the weights of the norms frozen."""
    torch.manual_seed(0)
    modules = build_modes('running', 'running')
    for module in modules:
        module.requires_grad_(False)
    args = inputs((2, 6, 3, 5))
    got, expected = (run(fused, *modules, *args) for fused in (True, False))
    for key in ('out', 'x', 'c'):
        torch.testing.assert_close(got[key], expected[key], rtol=1e-12,
                                   atol=1e-12)
    assert got['norm.weight'] is None
    assert torch.equal(got['norm.running_mean'], modules[1].running_mean)
    assert len(calls) == 1


@pytest.mark.parametrize('dtype', HALF)
def test_autocast(dtype, calls):
    torch.manual_seed(0)
    step, norm = build(StepNet, 8)
    x, c, grad = inputs((4, 8, 6, 6), dtype)
    grad = away_from_kink(step, norm, x, c, grad, 0.1)
    with torch.autocast('cpu', dtype):
        got = run(True, step, norm, x, c, grad)
    exact = run(False, step, norm, x, c, grad, torch.float64)
    error, name = worst(got, exact)
    assert error < 3 * torch.finfo(dtype).eps, name
    assert got['out'].dtype == dtype
    assert got['norm.weight'].dtype == torch.float32
    assert len(calls) == 1


def test_mixed_memory_formats(calls):
    torch.manual_seed(0)
    modules = build_modes('batch', 'batch')
    x, c, grad = inputs((3, 6, 4, 5))
    expected = run(False, *modules, x, c, grad)
    last = [t.contiguous(memory_format=FORMATS[1]) for t in (x, c, grad)]
    strided = torch.zeros(3, 6, 8, 5).double()[:, :, ::2].copy_(c)
    for args in ((last[0], c, grad), (x, last[1], grad), (x, c, last[2]),
                 (x, strided, grad), (x, c, grad.sum().expand(x.shape))):
        got = run(True, *modules, *args)
        if args[2].stride() == (0, 0, 0, 0):
            expected = run(False, *modules, *args)
        error, name = worst(got, expected)
        assert error < 1e-12, name
    assert len(calls) == 5


def test_inference_mode(calls):
    """Also before the first training: what it keeps serves both."""
    step, norm = build_modes('batch', 'batch', 23)
    x, c, grad = inputs((3, 23, 4, 5))
    with torch.inference_mode():
        first = step.eval()(x, c, norm.eval())
    step(x, c.requires_grad_(), norm).backward(grad)
    assert torch.equal(step(x, c, norm), first)
    assert c.grad.abs().sum() > 0
    assert len(calls) == 3


@pytest.mark.parametrize('value', [float('nan'), float('inf')])
def test_values_that_are_no_numbers(value, calls):
    """Spoil what they spoil in the reference path."""
    step, norm = build_modes('running', 'running')
    x, c, _ = inputs((2, 6, 3, 3))
    c[0, 1, 2, 0] = value
    found = step(x, c, norm)
    with steps.fused(False):
        expected = step(x, c, norm)
    torch.testing.assert_close(found, expected, equal_nan=True)
    assert calls
