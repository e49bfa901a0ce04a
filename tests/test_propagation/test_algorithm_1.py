"""Algorithm 1 written out in numpy, node by node and pair by pair."""

import math

import numpy as np
import pytest
import torch

from mmstepnet.propagation import (
    L2,
    DotProduct,
    GraphAttention,
    Metric,
    Propagation,
)
from tests.test_propagation.references import no_matrix
from tests.utils import perturb

NODES = 100
KINDS = {
    kind.__name__: kind for kind in (DotProduct, L2, Metric, GraphAttention)
}


def pseudo_metric(kind, w):
    """f of two points, from weights by name."""

    def perceptron(x):
        hidden = np.tanh(w['hidden.weight'] @ x + w['hidden.bias'])
        return x + w['metric.weight'] @ hidden

    def linear(x):
        return w['metric.weight'] @ x

    def score(name):
        return lambda x: w[name].ravel() @ w['linear.weight'] @ x

    return {
        'DotProduct': (
            lambda x: w['query.weight'] @ x,
            lambda x: w['key.weight'] @ x,
            lambda a, b: -(a @ b),
        ),
        'L2': (linear, linear, lambda a, b: ((a - b) ** 2).sum()),
        'Metric': (perceptron, perceptron, lambda a, b: ((a - b) ** 2).sum()),
        'GraphAttention': (
            score('receiver'),
            score('source'),
            lambda a, b: -(a - b if a > b else 0.2 * (a - b)),
        ),
    }[kind]


def algorithm_1(module, x, adjacent):
    """H_new = S H_old; nodes that are not adjacent have similarity 0.

    And the pseudo-metrics of whom each node sees.
    """
    weights = {
        k: v.numpy() for k, v in module.pseudo_metric.state_dict().items()
    }
    kind = type(module.pseudo_metric).__name__
    of_receiver, of_source, compare = pseudo_metric(kind, weights)
    a, b = [of_receiver(p) for p in x], [of_source(p) for p in x]
    out, distances = np.zeros_like(x), []
    for i in range(len(x)):
        seen = [j for j in range(len(x)) if adjacent is None or adjacent[i, j]]
        f = [compare(a[i], b[j]) for j in seen]
        # Nearest first, or the exponentials underflow; S does not change.
        weight = [math.exp(min(f) - one) for one in f]
        for share, j in zip(weight, seen):
            out[i] += share / sum(weight) * x[j]
        distances.append(f)
    return out, distances


def neighbours(seed=0):
    """Whom each node sees, itself included, and not symmetric."""
    rng = np.random.default_rng(seed)
    return (rng.random((NODES, NODES)) < 0.05) | np.eye(NODES, dtype=bool)


@pytest.mark.parametrize('on', ['all', 'mask', 'edges'])
@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('width', [10, 512])
def test_algorithm_1(kind, width, on, monkeypatch):
    module = perturb(Propagation(width, KINDS[kind])).double()
    assert module.eps == 1
    rng = np.random.default_rng(1)
    # In clumps, and near enough for more than one source to have a say.
    x = rng.standard_normal((NODES // 10, width)).repeat(10, 0)
    x += 0.3 * rng.standard_normal((NODES, width))
    x *= {'DotProduct': width**-0.25, 'GraphAttention': 1.0}.get(
        kind, 2 * width**-0.5
    )
    adjacent = None if on == 'all' else neighbours()
    expected, distances = algorithm_1(module, x, adjacent)
    if adjacent is None:
        with torch.no_grad():
            f = module.pseudo_metric(torch.from_numpy(x)[None])
        torch.testing.assert_close(f, torch.tensor(distances)[None, None])
        if kind in ('L2', 'Metric'):
            assert not f.diagonal(dim1=-2, dim2=-1).any() and (f >= 0).all()
    largest = np.abs(expected).max()
    assert np.abs(expected - x).max() > 0.05 * largest
    assert np.ptp(expected, 0).max() > 0.05 * largest
    mask = None if adjacent is None else torch.from_numpy(adjacent)
    mask = mask.to_sparse() if on == 'edges' else mask
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-4)):
        module = module.to(dtype)
        points = torch.from_numpy(x).to(dtype)
        outs = [module(points, mask=mask, dense=True)]
        if kind != 'GraphAttention' or on == 'edges':
            no_matrix(monkeypatch)
        with torch.no_grad():
            outs.append(module(points, mask=mask))
        outs.append(module(points, mask=mask))
        monkeypatch.undo()
        for out in outs:
            assert out.dtype == dtype
            error = np.abs(out.detach().double().numpy() - expected).max()
            assert error < tolerance * largest
