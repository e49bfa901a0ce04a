"""The fused residual step gives what the reference path gives.

Exact is float64 on the same numbers.
"""

import itertools

import pytest
import torch
import torch.nn as nn

from mmstepnet.attentions import Plain, StepNet
from mmstepnet.steps import ResidualStep
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

SHAPES = (
    (3, 6, 7, 5),
    (5, 6, 3, 3),
    (64, 6, 1, 2),
    (3, 6, 1, 1),
    (4, 6, 33, 31),
    (4, 1, 5, 9),
    (3, 130, 6, 7),
)
"""From three images on: a BN over two is all but constant."""


@pytest.mark.parametrize('memory_format', FORMATS)
@pytest.mark.parametrize('norm', NORMS)
@pytest.mark.parametrize('gate', GATES)
def test_equals_reference_in_float64(norm, gate, memory_format, calls):
    """Result, gradients and statistics; observers are told the same."""
    torch.manual_seed(0)
    shapes = (
        SHAPES if gate in ('batch', 'untracked') else (*SHAPES, (1, 6, 9, 4))
    )
    cases = list(itertools.product(shapes, (True, False)))
    for shape, relu in cases:
        modules = build_modes(norm, gate, shape[1], relu)
        for module in nn.ModuleList(modules).modules():
            if 'BatchNorm' in type(module).__name__ and relu:
                module.momentum, module.eps = 0.3, 1e-3
        args = inputs(shape, memory_format=memory_format)
        seen = {True: [], False: []}
        got, expected = (
            run(fused, *modules, *args, observer=seen[fused].append)
            for fused in seen
        )
        error, name = worst(got, expected)
        assert error < 1e-10, (shape, name)
        assert got['out'].stride() == args[1].stride()
        for a, b in zip(*(told[0][1:] for told in seen.values())):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    assert len(calls) == len(cases)


@pytest.mark.parametrize(
    'dtype',
    [
        torch.bfloat16,
        pytest.param(
            torch.float16,
            marks=pytest.mark.skipif(
                TORCH_21, reason='this BN takes no float16 on a CPU'
            ),
        ),
    ],
)
@pytest.mark.parametrize('how', ['maps', 'whole', 'autocast'])
@pytest.mark.parametrize('norm', NORMS)
def test_half_precision(norm, how, dtype, calls):
    """Maps alone, the whole model, or autocast."""
    for gate, memory_format in itertools.product(
        ('batch', 'running', 'folded'), FORMATS
    ):
        torch.manual_seed(1)
        modules = build_modes(norm, gate)
        nn.ModuleList(m for m in modules if m is not None).to(
            dtype if how == 'whole' else torch.float32
        )
        args = inputs((8, 6, 14, 13), dtype, memory_format)
        args[2] = away_from_kink(*modules, *args, 0.1)
        exact = run(False, *modules, *args, torch.float64)
        with torch.autocast('cpu', dtype, enabled=how == 'autocast'):
            got = run(True, *modules, *args)
        error, name = worst(got, exact)
        assert error < 3 * torch.finfo(dtype).eps, name
        assert got['out'].dtype == dtype
        if how == 'maps' and norm == 'batch':  # its statistics are float32
            torch.testing.assert_close(
                got['norm.running_var'].double(),
                exact['norm.running_var'],
                rtol=1e-3,
                atol=0,
            )
    assert len(calls) == 6


def test_mixed_memory_formats(calls):
    modules = build_modes('batch', 'batch')
    x, c, grad = inputs((3, 6, 4, 5))
    last = [t.contiguous(memory_format=FORMATS[1]) for t in (x, c, grad)]
    strided = torch.zeros(3, 6, 8, 5).double()[:, :, ::2].copy_(c)
    for args in (
        (last[0], c, grad),
        (x, last[1], grad),
        (x, c, last[2]),
        (x, strided, grad),
        (x, c, grad.sum().expand(x.shape)),
    ):
        error, name = worst(*(run(f, *modules, *args) for f in (True, False)))
        assert error < 1e-10, name
    assert len(calls) == 5


def test_two_images_and_values_that_are_no_numbers(calls):
    """In training the BN of a gate gives two images 1 and -1.

    It has no gradient then but rounding's. A NaN spoils what it spoils in the
    reference path.
    """
    x, c, grad = inputs((2, 6, 5, 4))
    spoilt = [
        c.clone().index_fill_(3, torch.tensor(0), value)
        for value in (torch.nan, torch.inf)
    ]
    for mode, maps in (('batch', c), *(('running', s) for s in spoilt)):
        modules = build_modes(mode, mode)
        found, wanted = (
            run(f, *modules, x, maps, grad) for f in (True, False)
        )
        keys = wanted if mode == 'batch' else ('out',)
        torch.testing.assert_close(
            *({k: values[k] for k in keys} for values in (found, wanted)),
            rtol=1e-10,
            atol=1e-10,
            equal_nan=True,
        )
    assert len(calls) == 3


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


NOISE = 1e-7
"""Below it float32's own rounding decides who is better."""

FURTHER = {(torch.channels_last, 1000, 'norm.bias'): 4}
"""The entry that is known to be further than twice as far."""


def relative_errors(mean, memory_format, seeds=8):
    """Over some draws: entry -> path -> error."""
    squares = {}
    for seed in range(seeds):
        torch.manual_seed(seed)
        step, norm = build(StepNet, 8)
        plain = ResidualStep(Plain(8), nn.ReLU())
        x, c, grad = inputs((8, 8, 14, 14), torch.float64, memory_format)
        c = (c - c.mean((0, 2, 3), True)) / c.std((0, 2, 3), keepdim=True)
        # No round numbers, which float32 holds too well.
        c += mean * torch.empty_like(c[:1, :, :1, :1]).uniform_(0.8, 1.2)
        x, c, grad = x.float(), c.float(), grad.float()
        for taken in (step, plain):
            grad = away_from_kink(taken, norm, x, c, grad, 0.05)
        for path, taken in dict(
            fused=step, reference=step, plain=plain
        ).items():
            exact = run(False, taken, norm, x, c, grad, torch.float64)
            found = run(path == 'fused', taken, norm, x, c, grad)
            for key, value in exact.items():
                both = squares.setdefault(key, {}).setdefault(path, [0, 0])
                both[0] += (found[key] - value).double().square().sum()
                both[1] += value.double().square().sum()
    return {
        key: {
            path: float(error / size) ** 0.5
            for path, (error, size) in paths.items()
        }
        for key, paths in squares.items()
    }


@pytest.mark.parametrize('memory_format', FORMATS)
@pytest.mark.parametrize('mean', [0, 10, 100, 1000])
def test_precision(mean, memory_format, calls):
    """Result and all gradients: at most twice as far as PyTorch's or ours.

    At channel means of many deviations any difference of large sums shows:
    E[c^2] - E[c]^2 would keep no digit of the variance.
    """
    too_far = {}
    for key, paths in relative_errors(mean, memory_format).items():
        factor = FURTHER.get((memory_format, mean, key), 2)
        limit = (
            1e-5
            if key.startswith('norm.running')
            else NOISE
            + factor * max(paths['reference'], paths.get('plain', 0))
        )
        if 'bn.running' not in key and paths['fused'] > limit:
            too_far[key] = paths
    assert not too_far
    assert len(calls) == 8
