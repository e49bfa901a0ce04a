"""What the tests of propagation share: inputs, and the formulas in numpy."""

import math

import numpy as np
import pytest
import torch

from mmstepnet.propagation import (
    dot_product_propagation,
    metric_propagation,
    neighbourhood,
)
from tests.utils import not_on_torch_21

EPS = 3.0
HALF = (
    pytest.param(
        torch.float16, marks=not_on_torch_21('has no float16 products on CPU')
    ),
    torch.bfloat16,
)
FORMS = {
    'metric': lambda a, b, v, **kw: metric_propagation(a, b, v, EPS, **kw),
    'dot product': lambda q, k, v, **kw: dot_product_propagation(
        q, k, v, max(q.shape[-1], 1) ** 0.5, **kw
    ),
}
TOLERANCE = {
    torch.float32: 5e-5,
    torch.float64: 1e-9,
    torch.bfloat16: 2e-2,
    torch.float16: 2e-2,
}
N = 33


def by_numpy(form, a, b, v, mask=None, is_causal=False, eps=EPS):
    """Written out in float64, a row's sources one by one."""
    a, b, v = (t.detach().double().numpy() for t in (a, b, v))
    lead, n, m = a.shape[:-2], a.shape[-2], b.shape[-2]
    allowed = np.ones((*lead, n, m), dtype=bool)
    if mask is not None:
        allowed &= np.broadcast_to(mask.to_dense().numpy(), allowed.shape)
    out = np.zeros((*lead, n, v.shape[-1]))
    for *where, i in np.ndindex(*lead, n):
        where = tuple(where)
        row = allowed[where][i].copy()
        if is_causal:
            row[i + 1 :] = False
            if not row.any():
                continue  # of padding on the left
        if form == 'metric':
            score = -((b[where][row] - a[where][i]) ** 2).sum(-1) / eps
        else:
            score = b[where][row] @ a[where][i] / math.sqrt(a.shape[-1])
        weight = np.exp(score - score.max())
        out[where][i] = weight / weight.sum() @ v[where][row]
    return torch.from_numpy(out)


def points(*lead, n=N, m=N, d=8, e=8, dtype=torch.float64, offset=0.0):
    torch.manual_seed(0)
    return [
        (torch.randn(*lead, *shape, dtype=torch.float64) + shift).to(dtype)
        for shape, shift in (((n, d), offset), ((m, d), offset), ((m, e), 0.0))
    ]


def masks(n=N, m=N, lead=(2, 3)):
    """Keyword arguments by name, for leading dimensions."""
    generator = torch.Generator().manual_seed(1)

    def some(*shape):
        mask = torch.rand(shape, generator=generator) < 0.3
        mask[..., 0] = True
        return dict(mask=mask)

    left = dict(mask=torch.ones(*lead, 1, m, dtype=torch.bool))
    left['mask'][-1:, ..., : m // 3] = False
    found = {
        'all': {},
        'boolean': some(n, m),
        'boolean of each': some(*lead, n, m),
        'keys': some(*lead, 1, m),
    }
    causal = {
        f'causal, {name}': dict(is_causal=True, **kwargs)
        for name, kwargs in (*found.items(), ('left', left))
    }
    edges = torch.rand(n, m, generator=generator) < 0.1
    edges[:, 0] = True
    return found | causal | {'edges': dict(mask=edges.to_sparse())}


def gradients(function, inputs, **kwargs):
    """Output, and gradients of a random linear function of it."""
    inputs = [t.clone().requires_grad_() for t in inputs]
    out = function(*inputs, **kwargs)
    generator = torch.Generator().manual_seed(2)
    grad = torch.randn(out.shape, generator=generator, dtype=torch.float64)
    return [out.detach(), *torch.autograd.grad(out, inputs, grad.to(out))]


def error(got, expected):
    """Largest difference, in units of the largest entry."""
    assert got.shape == expected.shape
    if not expected.numel():
        return 0.0
    expected = expected.double()
    difference = (got.double() - expected).abs().amax()
    return (difference / expected.abs().amax().clamp(min=0.1)).item()


def no_matrix(monkeypatch):
    """Keep the N x M form out of a comparison with itself."""

    def refuse(*args):
        raise AssertionError('the N x M form was taken')

    monkeypatch.setattr('mmstepnet.propagation.functional._dense', refuse)


def graph(nodes=N):
    generator = torch.Generator().manual_seed(3)
    edges = torch.randint(nodes, (2 * nodes, 2), generator=generator)
    return neighbourhood(edges, nodes)
