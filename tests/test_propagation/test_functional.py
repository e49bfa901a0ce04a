import math
import warnings

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from mmstepnet.propagation import (
    dot_product_propagation,
    metric_propagation,
    neighbourhood,
    sdpa,
)
from tests.utils import not_on_torch_21

EPS = 3.0
HALF = (
    pytest.param(
        torch.float16,
        marks=not_on_torch_21('has no float16 products on CPU')),
    torch.bfloat16,
)
FORMS = {
    'metric': lambda a, b, v, **kw: metric_propagation(a, b, v, EPS, **kw),
    'dot product': dot_product_propagation,
}
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
N = 33


def by_numpy(form, a, b, v, mask=None, is_causal=False):
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
            row[i + 1:] = False
        if form == 'metric':
            score = -((b[where][row] - a[where][i])**2).sum(-1) / EPS
        else:
            score = b[where][row] @ a[where][i] / math.sqrt(a.shape[-1])
        weight = np.exp(score - score.max())
        out[where][i] = weight / weight.sum() @ v[where][row]
    return torch.from_numpy(out)


def points(*lead, n=N, m=N, d=8, e=8, dtype=torch.float64, offset=0.0):
    torch.manual_seed(0)
    return [(torch.randn(*lead, *shape, dtype=torch.float64) + shift).to(dtype)
            for shape, shift in (((n, d), offset), ((m, d), offset),
                                 ((m, e), 0.0))]


def masks(n=N, m=N):
    """Keyword arguments by name, for two leading dimensions (2, 3)."""
    generator = torch.Generator().manual_seed(1)
    some = torch.rand(n, m, generator=generator) < 0.3
    some[:, 0] = True
    heads = torch.rand(2, 3, n, m, generator=generator) < 0.3
    heads[..., 0] = True
    right = torch.ones(2, 1, 1, m, dtype=torch.bool)
    right[1, ..., (m + 1) // 2:] = False
    scattered = torch.rand(2, 1, 1, m, generator=generator) < 0.5
    scattered[..., 0] = True
    result = {
        'all': {},
        'boolean': dict(mask=some),
        'boolean of each head': dict(mask=heads),
        'key padding': dict(mask=right),
        'scattered keys': dict(mask=scattered),
    }
    if n == m:
        result |= {
            'causal': dict(is_causal=True),
            **{f'causal, {name}': dict(is_causal=True, **result[name])
               for name in list(result)[1:]}
        }
    return result


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
    expected = expected.double()
    difference = (got.double() - expected).abs().amax()
    return (difference / expected.abs().amax()).item()


def no_matrix(monkeypatch):
    """Keep the N x M form out of a comparison with itself."""
    def refuse(*args):
        raise AssertionError('the N x M form was taken')

    monkeypatch.setattr('mmstepnet.propagation.functional._dense',
                        refuse)


@pytest.mark.parametrize('form', FORMS)
@pytest.mark.parametrize('name', masks())
@pytest.mark.parametrize('dtype', TOLERANCE)
def test_three_evaluations(form, name, dtype, monkeypatch):
    function, kwargs = FORMS[form], masks()[name]
    inputs = points(2, 3, dtype=dtype)
    expected = by_numpy(form, *inputs, **kwargs)
    matrix = gradients(function, inputs, dense=True, **kwargs)
    assert error(matrix[0], expected) < TOLERANCE[dtype]
    no_matrix(monkeypatch)
    fused = gradients(function, inputs, **kwargs)
    for got, want in zip(fused, matrix):
        assert got.dtype == dtype
        assert error(got, want) < TOLERANCE[dtype]
    with torch.no_grad():
        out = function(*inputs, **kwargs)
    assert error(out, expected) < TOLERANCE[dtype]


@pytest.mark.parametrize('name', ['all', 'boolean', 'key padding'])
@pytest.mark.parametrize('form', FORMS)
def test_other_shapes(form, name):
    """More receivers than sources or fewer, other widths of the values."""
    for n, m, d, e in ((7, 19, 5, 3), (19, 7, 3, 11), (1, 19, 8, 8),
                       (19, 1, 8, 8), (5, 5, 1, 1)):
        kwargs = masks(n, m)[name]
        inputs = points(2, 3, n=n, m=m, d=d, e=e)
        expected = by_numpy(form, *inputs, **kwargs)
        fused = gradients(FORMS[form], inputs, **kwargs)
        matrix = gradients(FORMS[form], inputs, dense=True, **kwargs)
        assert error(fused[0], expected) < 1e-10
        assert error(FORMS[form](*inputs, **kwargs), expected) < 1e-10
        for got, want in zip(fused, matrix):
            # One source: its weight is 1, and no other gradient than v's.
            assert (got - want).abs().max() < 1e-10 * (1 + want.abs().max())


@pytest.mark.parametrize('lead', [(), (3, ), (2, 3), (2, 1, 3), (2, 1, 2, 3)])
@pytest.mark.parametrize('form', FORMS)
def test_leading_dimensions(form, lead):
    inputs = points(*lead, n=5, m=7)
    keys = torch.ones(*lead, 1, 7, dtype=torch.bool)
    keys[..., 5:] = False
    for kwargs in ({}, dict(mask=keys), dict(mask=keys.expand(*lead, 5, 7))):
        expected = by_numpy(form, *inputs, **kwargs)
        for out in (FORMS[form](*inputs, **kwargs),
                    gradients(FORMS[form], inputs, **kwargs)[0]):
            assert error(out, expected) < 1e-10


@pytest.mark.parametrize('dtype', TOLERANCE)
@pytest.mark.parametrize('name', ['all', 'key padding', 'causal'])
def test_far_from_the_origin(dtype, name):
    inputs = points(2, 3, dtype=dtype, offset=1e3)
    kwargs = masks()[name]
    expected = by_numpy('metric', *inputs, **kwargs)
    fused = gradients(FORMS['metric'], inputs, **kwargs)
    matrix = gradients(FORMS['metric'], inputs, dense=True, **kwargs)
    assert error(fused[0], expected) < TOLERANCE[dtype]
    assert error(FORMS['metric'](*inputs, **kwargs),
                 expected) < TOLERANCE[dtype]
    for got, want in zip(fused, matrix):
        assert error(got, want) < TOLERANCE[dtype]


@pytest.mark.parametrize('form', FORMS)
@pytest.mark.parametrize('name', masks())
def test_kernels_that_take_no_mask(form, name, monkeypatch):
    """PyTorch 2.1 on a CPU: masks of sources must not reach the kernel."""
    kwargs = masks()[name]
    inputs = points(2, 3)
    expected = by_numpy(form, *inputs, **kwargs)
    monkeypatch.setattr(sdpa, 'CPU_TAKES_MASK', False)
    kernel, seen = sdpa.F.scaled_dot_product_attention, []

    def watch(*args, attn_mask, **kwargs):
        seen.append(attn_mask)
        return kernel(*args, attn_mask=attn_mask, **kwargs)

    monkeypatch.setattr(sdpa.F, 'scaled_dot_product_attention', watch)
    assert error(FORMS[form](*inputs, **kwargs), expected) < 1e-10
    (mask, ) = seen
    assert (mask is None) == ('boolean' not in name)


@pytest.mark.parametrize('is_causal', [False, True])
def test_padding_far_away(is_causal):
    """What stands in the padding costs the others no digits."""
    a, b, v = points(2, 3, dtype=torch.float32)
    kept = masks()['key padding']['mask']
    shut = ~kept.transpose(-2, -1)
    b, v = b.masked_fill(shut, 1e5), v.masked_fill(shut, 1e5)
    kwargs = dict(mask=kept, is_causal=is_causal)
    expected = by_numpy('metric', a, b, v, **kwargs)
    matrix = gradients(FORMS['metric'], (a, b, v), dense=True, **kwargs)
    fused = gradients(FORMS['metric'], (a, b, v), **kwargs)
    assert error(metric_propagation(a, b, v, EPS, **kwargs), expected) < 1e-5
    for got, want in zip(fused, matrix):
        assert error(got, want) < 1e-5


@pytest.mark.parametrize('form', FORMS)
@pytest.mark.parametrize('name', ['all', 'boolean', 'key padding', 'causal',
                                  'causal, key padding',
                                  'causal, boolean of each head'])
@pytest.mark.parametrize('dtype', HALF)
def test_half_precision(form, name, dtype):
    kwargs = masks()[name]
    for width in (8, 64):
        inputs = [t / (width / 8)**0.5
                  for t in points(2, 3, d=width, e=width, dtype=dtype)]
        exact = [t.double() for t in inputs]
        matrix = gradients(FORMS[form], exact, dense=True, **kwargs)
        fused = gradients(FORMS[form], inputs, **kwargs)
        for got, want in zip(fused, matrix):
            assert got.dtype == dtype
            assert error(got, want) < 2e-2
        assert error(FORMS[form](*inputs, **kwargs), matrix[0]) < 2e-2


@pytest.mark.parametrize('dtype', HALF)
def test_norms_that_half_precision_cannot_hold(dtype):
    """Squared norms to 1e6, of which both dtypes keep too few digits."""
    a, b, v = points(2, 3, d=16, dtype=dtype)
    a, b = (t * 200 for t in (a, b))
    expected = metric_propagation(
        a.double(), b.double(), v.double(), 3e4, dense=True)
    for needs in (False, True):
        out = metric_propagation(a.requires_grad_(needs),
                                 b.requires_grad_(needs), v, 3e4)
        assert error(out, expected) < 2e-2


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


def test_masks_that_say_the_same_give_the_same():
    """However far away the padding is."""
    a, b, v = points(2, dtype=torch.float32)
    mask = torch.ones(2, 1, N, dtype=torch.bool)
    mask[..., 20:] = False
    expected = metric_propagation(a, b, v, EPS, mask)
    b[:, 20:] = 1e4
    for form in (mask, mask.expand(2, N, N), mask.expand(2, N, N).clone()):
        assert error(metric_propagation(a, b, v, EPS, form),
                     expected) < 1e-5


@pytest.mark.parametrize('bad', [math.nan, math.inf])
@pytest.mark.parametrize('dtype', [*HALF, torch.float32])
def test_one_broken_sample_leaves_the_others(dtype, bad):
    a, b, v = points(3, dtype=dtype)
    expected = metric_propagation(a, b, v, EPS)
    b[0, 2, 1] = bad
    out = metric_propagation(a, b, v, EPS)
    assert out[0].isnan().any()
    assert torch.equal(out[1:], expected[1:])


@pytest.mark.parametrize('scale', [1e-3, 1e3])
@pytest.mark.parametrize('dtype', TOLERANCE)
def test_scaling_points_and_eps_together(scale, dtype):
    """The similarity has no unit of its own, shut sources included."""
    a, b, v = points(2, 3, dtype=dtype)
    for kwargs in masks().values():
        expected = metric_propagation(a, b, v, EPS, **kwargs)
        got = metric_propagation(a * scale, b * scale, v, EPS * scale**2,
                                 **kwargs)
        assert error(got, expected) < TOLERANCE[dtype]


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


@not_on_torch_21('has no float16 products on CPU')
def test_float16_refuses_what_it_cannot_close():
    a, b, v = points(1, 1, dtype=torch.float16)
    keys = torch.arange(N)[None] < N - 1
    metric_propagation(a, b, v, 1e6, keys)
    with pytest.raises(ValueError, match='float16 cannot close'):
        metric_propagation(a, b, v, 1e9, keys)


def test_some_gradients_only():
    """b decides about the form; a and v get theirs in both."""
    inputs = points(2, 3)
    matrix = gradients(FORMS['metric'], inputs, dense=True)[1:]
    generator = torch.Generator().manual_seed(2)
    grad = torch.randn(2, 3, N, 8, generator=generator, dtype=torch.float64)
    for wanted in ((0, ), (1, ), (2, ), (0, 2), (0, 1)):
        own = [t.clone().requires_grad_(i in wanted)
               for i, t in enumerate(inputs)]
        out = metric_propagation(*own, EPS)
        got = torch.autograd.grad(out, [own[i] for i in wanted], grad)
        for i, gradient in zip(wanted, got):
            assert error(gradient, matrix[i]) < 1e-10


@pytest.mark.parametrize('name', masks(5, 5))
@pytest.mark.parametrize('form', FORMS)
def test_gradcheck(form, name):
    kwargs = masks(5, 5)[name]
    inputs = [t.requires_grad_() for t in points(2, 3, n=5, m=5, d=2, e=3)]
    assert gradcheck(lambda *x: FORMS[form](*x, **kwargs), inputs,
                     fast_mode=True)


def graph(nodes=N):
    generator = torch.Generator().manual_seed(3)
    edges = torch.randint(nodes, (2 * nodes, 2), generator=generator)
    return neighbourhood(edges, nodes)


@pytest.mark.parametrize('form', FORMS)
@pytest.mark.parametrize('dtype', TOLERANCE)
@pytest.mark.parametrize('lead', [(), (2, 3)])
def test_sparse_neighbourhood(form, dtype, lead, monkeypatch):
    mask = graph()
    inputs = points(*lead, d=5, e=4, dtype=dtype)
    expected = by_numpy(form, *inputs, mask=mask)
    matrix = gradients(FORMS[form], inputs, mask=mask, dense=True)
    by_kernel = gradients(FORMS[form], inputs, mask=mask.to_dense())
    no_matrix(monkeypatch)
    along_edges = gradients(FORMS[form], inputs, mask=mask)
    assert error(along_edges[0], expected) < TOLERANCE[dtype]
    for got, want, other in zip(along_edges, matrix, by_kernel):
        assert error(got, want) < TOLERANCE[dtype]
        assert error(got, other) < TOLERANCE[dtype]


@pytest.mark.parametrize('form', FORMS)
def test_sparse_between_two_sets_of_points(form):
    pairs = torch.tensor([[0, 0, 1, 2, 2, 2], [4, 1, 0, 3, 1, 2]])
    mask = torch.zeros(3, 5, dtype=torch.bool)
    mask[tuple(pairs)] = True
    mask = mask.to_sparse()
    inputs = points(n=3, m=5, d=2, e=3)
    out = FORMS[form](*inputs, mask=mask)
    assert error(out, by_numpy(form, *inputs, mask=mask)) < 1e-10
    assert gradcheck(lambda *x: FORMS[form](*x, mask=mask),
                     [t.requires_grad_() for t in inputs])


def test_sparse_far_from_the_origin_and_far_apart():
    """Scores no exponential could hold, and halves of little range."""
    a, b, v = points(dtype=torch.float32, offset=1e3)
    mask = graph()
    for shrink in (1.0, 1e-6):
        out = metric_propagation(a, b, v, EPS * shrink, mask)
        want = metric_propagation(a, b, v, EPS * shrink, mask, dense=True)
        assert error(out, want) < 1e-5
    half = [t.half() for t in points()]
    out = metric_propagation(*half, EPS, mask)
    want = by_numpy('metric', *half, mask=mask)
    assert out.dtype == torch.float16 and error(out, want) < 1e-3


@pytest.mark.parametrize('form', FORMS)
def test_autocast(form):
    """In bfloat16 whatever comes, as layers mix dtypes under autocast."""
    a, b, v = points(2, 3, d=16, e=16, dtype=torch.float32)
    for name in ('all', 'key padding', 'causal, key padding'):
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


def test_memory_does_not_grow_with_the_square():
    """No tensor of the N x M form's size is made in either form."""
    from torch.utils._python_dispatch import TorchDispatchMode

    n = 1024
    largest = 0

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            for t in torch.utils._pytree.tree_flatten(out)[0]:
                if isinstance(t, torch.Tensor):
                    largest = max(largest, t.untyped_storage().nbytes())
            return out

    a, b, v = points(1, 2, n=n, m=n, dtype=torch.float32)
    keys = torch.arange(n)[None] < n - 9
    for needs in (False, True):
        for kwargs in ({}, dict(mask=keys), dict(is_causal=True),
                       dict(mask=keys, is_causal=True)):
            with Sizes():
                out = metric_propagation(a, b.requires_grad_(needs), v, EPS,
                                         **kwargs)
                if needs:
                    out.sum().backward()
    assert 0 < largest < 2 * n * 16 * 4
    with Sizes():
        metric_propagation(a, b, v, EPS, dense=True)
    assert largest >= 2 * n * n * 4


@not_on_torch_21("breaks the graph at autocast's dtype")
@pytest.mark.parametrize('kwargs', [
    {}, dict(mask=torch.arange(N)[None] < 20), dict(is_causal=True),
    dict(mask=torch.ones(N, N, dtype=torch.bool).tril())
])
def test_compile(kwargs):
    torch.compiler.reset()
    a, b, v = points(2, 3, dtype=torch.float32)
    compiled = torch.compile(metric_propagation, backend='aot_eager',
                             fullgraph=True)
    for needs in (False, True):
        b.requires_grad_(needs)
        out = compiled(a, b, v, EPS, **kwargs)
        expected = metric_propagation(a, b, v, EPS, **kwargs)
        torch.testing.assert_close(out, expected)
    got, want = (torch.autograd.grad(t.square().sum(), b)[0]
                 for t in (out, expected))
    torch.testing.assert_close(got, want)


def test_gradient_transform():
    a, b, v = points(4)
    gradient = torch.func.grad(
        lambda b: metric_propagation(a, b, v, EPS).square().sum())(b)
    own = b.clone().requires_grad_()
    out = metric_propagation(a, own, v, EPS, dense=True)
    out.square().sum().backward()
    assert error(gradient, own.grad) < 1e-10


@not_on_torch_21('has no batching rule for its attention kernel')
def test_batching_transform():
    a, b, v = points(4)
    with warnings.catch_warnings():
        # PyTorch batches its kernel by a loop, and says so.
        warnings.filterwarnings('ignore', message='There is a performance')
        batched = torch.func.vmap(
            lambda *x: metric_propagation(*x, EPS))(a, b, v)
    out = metric_propagation(a, b, v, EPS, dense=True)
    assert error(batched, out) < 1e-10


class TestBadInput:

    @pytest.mark.parametrize('eps', [
        0, 0.0, -1.0, math.nan, math.inf, -math.inf, True, '1', None,
        torch.tensor(1.0)
    ])
    def test_eps(self, eps):
        with pytest.raises(ValueError, match='eps.*positive number, got'):
            metric_propagation(*points(), eps)

    def test_eps_of_numpy(self):
        inputs = points()
        assert torch.equal(metric_propagation(*inputs, np.float32(2)),
                           metric_propagation(*inputs, 2))

    @pytest.mark.parametrize('form', FORMS)
    @pytest.mark.parametrize('shapes,message', [
        (((3, ), (5, 3), (5, 2)), 'are needed, got'),
        (((4, 3), (5, 2), (5, 2)), 'do not fit'),
        (((4, 3), (5, 3), (6, 2)), 'do not fit'),
        (((2, 4, 3), (5, 3), (5, 2)), 'do not fit'),
        (((0, 3), (5, 3), (5, 2)), 'a dimension is 0'),
        (((4, 3), (0, 3), (0, 2)), 'a dimension is 0'),
        (((4, 0), (5, 0), (5, 2)), 'a dimension is 0'),
    ])
    def test_shapes(self, form, shapes, message):
        with pytest.raises(ValueError, match=message):
            FORMS[form](*(torch.ones(s) for s in shapes))

    @pytest.mark.parametrize('form', FORMS)
    @pytest.mark.parametrize('dtypes', [
        (torch.float32, torch.float64, torch.float32),
        (torch.float32, torch.float32, torch.bfloat16),
        (torch.int64, torch.int64, torch.int64)
    ])
    def test_dtypes(self, form, dtypes):
        with pytest.raises(ValueError, match='one floating dtype, got'):
            FORMS[form](*(torch.ones(2, 2, dtype=t) for t in dtypes))


@not_on_torch_21("breaks the graph at autocast's dtype")
@pytest.mark.parametrize('backend', ['eager', 'aot_eager'])
@pytest.mark.parametrize('form', FORMS)
def test_compiled_code_refuses_a_row_without_a_source(form, backend):
    """Padding on the left leaves the first rows nothing to see."""
    torch.compiler.reset()
    compiled = torch.compile(FORMS[form], backend=backend, fullgraph=True)
    a, b, v = points(2)
    mask = torch.ones(2, 1, N, dtype=torch.bool)
    mask[..., :5] = False
    for kwargs in (dict(mask=mask), dict(mask=mask.expand(2, N, N))):
        out = compiled(a, b, v, **kwargs)
        assert error(out, by_numpy(form, a, b, v, **kwargs)) < 1e-10
        with pytest.raises(RuntimeError, match='leaves no source'):
            compiled(a, b, v, is_causal=True, **kwargs)
