"""How far the fused step is from exact, beside PyTorch's own and ours.

Exact is float64 on the same numbers. At channel means of many deviations any
difference of large sums shows.
"""

import pytest
import torch
import torch.nn as nn

from mmstepnet.attentions import Plain, StepNet
from mmstepnet.steps import ResidualStep
from tests.test_steps.cases import (
    FORMATS,
    away_from_kink,
    build,
    inputs,
    run,
)

NOISE = 1e-7
"""Below it float32's own rounding decides who is better."""

FURTHER = {
    (torch.channels_last, 1000, 'norm.bias'): 4,
}
"""The entry that is known to be further than twice as far."""


def table(mean, memory_format, seeds=8):
    """Relative errors over some draws: entry -> path -> error."""
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
        for path, taken in dict(fused=step, reference=step,
                                plain=plain).items():
            exact = run(False, taken, norm, x, c, grad, torch.float64)
            found = run(path == 'fused', taken, norm, x, c, grad)
            for key, value in exact.items():
                both = squares.setdefault(key, {}).setdefault(path, [0, 0])
                both[0] += (found[key] - value).double().square().sum()
                both[1] += value.double().square().sum()
    return {key: {path: float(error / size)**0.5
                  for path, (error, size) in paths.items()}
            for key, paths in squares.items()}


@pytest.mark.parametrize('memory_format', FORMATS)
@pytest.mark.parametrize('mean', [0, 10, 100, 1000])
def test_at_most_twice_as_far_as_pytorch(mean, memory_format, calls):
    """Result and all gradients."""
    too_far = {}
    for key, paths in table(mean, memory_format).items():
        print(f'{key:32}', *(f'{p} {e:.1e}' for p, e in paths.items()))
        factor = FURTHER.get((memory_format, mean, key), 2)
        limit = NOISE + factor * max(
            paths['reference'], paths.get('plain', 0))
        if 'running' not in key and paths['fused'] > limit:
            too_far[key] = paths
    assert not too_far
    assert len(calls) == 8


@pytest.mark.parametrize('memory_format', FORMATS)
def test_running_statistics_at_large_means(memory_format):
    """E[c^2] - E[c]^2 would keep no digit of the variance."""
    found = table(1000, memory_format)
    for key in ('norm.running_mean', 'norm.running_var'):
        assert found[key]['fused'] < 1e-5
