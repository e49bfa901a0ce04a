"""Far points, few digits, broken samples."""

import pytest
import torch

from mmstepnet.propagation import metric_propagation
from mmstepnet.propagation.sdpa import propagate
from tests.test_propagation.references import (
    EPS,
    FORMS,
    HALF,
    N,
    by_numpy,
    error,
    gradients,
    graph,
    masks,
    points,
)


@pytest.mark.parametrize('kwargs', [{}, dict(is_causal=True), dict(
    mask=torch.rand(N, N, generator=torch.Generator().manual_seed(1))
    > torch.full((N, N), 0.5).fill_diagonal_(-1))])
@pytest.mark.parametrize('width', [10, 100, 1000, 1e4])
def test_clumps_far_from_each_other(width, kwargs):
    """Whose distances to their own clump are small beside the others'."""
    _, noise, v = points(2, n=N, d=3, dtype=torch.float32)
    x = noise[..., :3] + width * torch.rand(
        2, 5, 3)[:, torch.arange(N) % 5]
    expected = by_numpy('metric', x, x, v, **kwargs)
    x = x.requires_grad_()
    out = metric_propagation(x, x, v, EPS, **kwargs)
    assert out.dtype == torch.float32
    assert error(out, expected) < 2e-4
    matrix = gradients(FORMS['metric'], (x.double(), x.double(), v.double()),
                       dense=True, **kwargs)
    fused = gradients(FORMS['metric'], (x, x, v), **kwargs)
    for got, want in zip(fused, matrix):
        assert error(got, want) < 2e-3


@pytest.mark.parametrize('eps', [1e-4, 1e12])
@pytest.mark.parametrize('grad', [False, True])
def test_shut_sources_say_nothing_at_any_eps(eps, grad):
    a, b, v = points(2, 3, dtype=torch.float32)
    shut = torch.zeros(N, dtype=torch.bool)
    shut[N // 2:] = True
    loud = v.masked_fill(shut[:, None], 1e6)
    b.requires_grad_(grad)
    for is_causal in (False, True):
        quiet, heard = (
            metric_propagation(a, b, values, eps, ~shut[None],
                               is_causal=is_causal) for values in (v, loud))
        assert torch.equal(quiet, heard)
        assert heard.abs().max() < 10
        if grad:
            (gradient, ) = torch.autograd.grad(heard.square().sum(), b)
            assert gradient.isfinite().all()
            assert not gradient[..., shut, :].any()


@pytest.mark.parametrize('form', FORMS)
def test_autocast(form):
    """In bfloat16 whatever comes, as layers mix dtypes under autocast."""
    a, b, v = points(2, 3, d=16, e=16, dtype=torch.float32)
    for name in ('all', 'keys', 'causal, keys'):
        kwargs = masks()[name]
        expected = by_numpy(form, a, b, v, **kwargs)
        for values in (v, v.bfloat16()):
            for needs in (False, True):
                with torch.autocast('cpu', torch.bfloat16):
                    out = FORMS[form](a, b.requires_grad_(needs), values,
                                      **kwargs)
                    matrix = FORMS[form](a, b, values, dense=True, **kwargs)
                assert out.dtype == matrix.dtype == torch.bfloat16
                assert error(out, expected) < 2e-2
                assert error(matrix, expected) < 1e-2
    with torch.autocast('cpu', torch.bfloat16):
        a, b, v = (t.double() for t in (a, b, v))
        out = FORMS[form](a, b, v)
        sparse = FORMS[form](a.bfloat16(), b.bfloat16(), v.bfloat16(),
                             mask=graph())
    assert error(out, by_numpy(form, a, b, v)) < 1e-10
    assert sparse.dtype == torch.bfloat16


@pytest.mark.parametrize('dtype', HALF)
@pytest.mark.parametrize('autocast', [False, True])
def test_half_precision_of_points_that_lie_apart(dtype, autocast):
    """Two clumps: the rounding of the distance between them would drown the
    distances within each."""
    x, _, v = points(2, dtype=dtype)
    x = x / 10
    x[:, ::2] += 30
    x, v = x.to(dtype), v.to(dtype)
    exact = [t.double() for t in (x, x, v)]
    expected = gradients(FORMS['metric'], exact, dense=True)
    if autocast:
        with torch.autocast('cpu', dtype):
            got = gradients(FORMS['metric'], [x.float(), x.float(), v.float()])
    else:
        got = gradients(FORMS['metric'], [x, x, v])
    for one, other in zip(got, expected):
        assert error(one, other) < 1e-2


@pytest.mark.parametrize('form', [
    lambda keep: keep, lambda keep: keep.expand(2, N, N).clone()])
def test_a_far_source_in_float16(form):
    """Seen or in the padding, it costs the others nothing."""
    a, b, v = points(2, dtype=torch.float16)
    b[:, -1] = 1e4
    keep = torch.ones(2, 1, N, dtype=torch.bool)
    keep[..., -1] = False
    for mask in (None, form(keep)):
        out = metric_propagation(a, b, v, EPS, mask)
        assert error(out, by_numpy('metric', a, b, v, mask=mask)) < 5e-3
        with torch.no_grad():
            sent = propagate(a, b, v, 2 / EPS, b[:, :-1].mean(
                1, keepdim=True), mask)  # as on other devices
        assert error(sent, out) < 5e-2


@pytest.mark.parametrize('distance', [1e14, 1e15, 1e17])
def test_a_shut_source_at_the_receiver(distance):
    """However far the others are, in whatever form it is shut out."""
    a = torch.tensor([[0.], [distance]])
    v, keep = torch.tensor([[100.], [1.]]), torch.tensor([[False, True]])
    for needs in (False, True):
        out = metric_propagation(a, a.clone().requires_grad_(needs), v, 1.,
                                 keep)
        assert out.tolist() == [[1.], [1.]]
