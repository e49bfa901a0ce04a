"""Propagation against its formula: every form, few digits, compiled code."""

import itertools
import warnings

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mmstepnet.propagation import MetricAttention, metric_propagation
from mmstepnet.propagation.sdpa import propagate
from tests.test_propagation.references import (
    EPS,
    FORMS,
    HALF,
    TOLERANCE,
    N,
    by_numpy,
    error,
    gradients,
    graph,
    masks,
    no_matrix,
    points,
)
from tests.utils import not_on_torch_21

SHAPES = {
    'square': dict(lead=(2, 3)),
    'far from the origin': dict(lead=(2, 3), offset=1e3),
    'more sources': dict(lead=(2, 3), n=7, m=19, d=5, e=3),
    'fewer sources': dict(lead=(2, 3), n=19, m=7, d=3, e=11),
    'one receiver': dict(lead=(2, 3), n=1, m=19),
    'one source': dict(lead=(2, 3), n=19, m=1),
    'one number each': dict(lead=(2, 3), n=5, m=5, d=1, e=1),
    'no receiver': dict(lead=(2, 3), n=0, m=5),
    'no group': dict(lead=(0,), n=5, m=7),
    'alone': dict(lead=(), n=5, m=7),
    'many groups': dict(lead=(2, 1, 2, 3), n=5, m=7),
}
CASES = [
    (shape, dtype)
    for shape in SHAPES
    for dtype in (torch.float64, torch.float32)
]
CASES += [
    pytest.param(
        'square',
        *getattr(dtype, 'values', (dtype,)),
        marks=getattr(dtype, 'marks', ()),
    )
    for dtype in HALF
]


@pytest.mark.parametrize('form', FORMS)
@pytest.mark.parametrize('shape, dtype', CASES)
def test_every_form_is_the_formula(form, shape, dtype, monkeypatch):
    """Values by numpy, gradients by the N x M form in float64."""
    settings = dict(SHAPES[shape])
    lead, function = settings.pop('lead'), FORMS[form]
    if form == 'dot product':
        settings.pop('offset', None)
    inputs = points(*lead, dtype=dtype, **settings)
    tolerance = TOLERANCE[dtype]
    for name, kwargs in masks(
        inputs[0].shape[-2], inputs[1].shape[-2], lead
    ).items():
        expected = by_numpy(form, *inputs, **kwargs)
        matrix = gradients(
            function, [t.double() for t in inputs], dense=True, **kwargs
        )
        assert error(matrix[0], expected) < 1e-10, name
        assert (
            error(function(*inputs, dense=True, **kwargs), expected)
            < tolerance
        ), name
        with monkeypatch.context() as patch:
            no_matrix(patch)
            for got, want in zip(
                gradients(function, inputs, **kwargs), matrix
            ):
                assert got.dtype == dtype
                assert error(got, want) < tolerance, name
            with torch.no_grad():
                out = function(*inputs, **kwargs)
        assert error(out, expected) < tolerance, name


def test_memory_does_not_grow_with_the_square():
    """No tensor of the N x M form's size is made in either form."""
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
        for kwargs in (
            {},
            dict(mask=keys),
            dict(is_causal=True),
            dict(mask=keys, is_causal=True),
        ):
            with Sizes():
                out = metric_propagation(
                    a, b.requires_grad_(needs), v, EPS, **kwargs
                )
                if needs:
                    out.sum().backward()
    assert 0 < largest < 2 * n * 16 * 4
    with Sizes():
        metric_propagation(a, b, v, EPS, dense=True)
    assert largest >= 2 * n * n * 4


@pytest.mark.parametrize(
    'kwargs',
    [
        pytest.param({}, id='plain'),
        pytest.param(dict(is_causal=True), id='causal'),
        pytest.param(
            dict(
                mask=torch.rand(
                    N, N, generator=torch.Generator().manual_seed(1)
                )
                > torch.full((N, N), 0.5).fill_diagonal_(-1)
            ),
            id='masked',
        ),
    ],
)
@pytest.mark.parametrize('width', [10, 100, 1000, 1e4])
def test_clumps_far_from_each_other(width, kwargs):
    """Whose distances to their own clump are small beside the others'."""
    _, noise, v = points(2, n=N, d=3, dtype=torch.float32)
    x = noise[..., :3] + width * torch.rand(2, 5, 3)[:, torch.arange(N) % 5]
    expected = by_numpy('metric', x, x, v, **kwargs)
    matrix = gradients(
        FORMS['metric'],
        (x.double(), x.double(), v.double()),
        dense=True,
        **kwargs,
    )
    fused = gradients(FORMS['metric'], (x, x, v), **kwargs)
    assert fused[0].dtype == torch.float32
    assert error(fused[0], expected) < 2e-4
    for got, want in zip(fused, matrix):
        assert error(got, want) < 2e-3


@pytest.mark.parametrize('eps', [1e-4, 1e12])
def test_shut_sources_say_nothing_at_any_eps(eps):
    a, b, v = points(2, 3, dtype=torch.float32)
    seen = torch.arange(N)[None] < N // 2
    loud = v.masked_fill(~seen.mT, 1e6)
    for needs, is_causal in itertools.product((False, True), repeat=2):
        b.requires_grad_(needs)
        quiet, heard = (
            metric_propagation(a, b, values, eps, seen, is_causal=is_causal)
            for values in (v, loud)
        )
        assert torch.equal(quiet, heard) and heard.abs().max() < 10
        if needs:
            (gradient,) = torch.autograd.grad(heard.square().sum(), b)
            assert gradient.isfinite().all()
            assert not gradient[..., N // 2 :, :].any()


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
                    out = FORMS[form](
                        a, b.requires_grad_(needs), values, **kwargs
                    )
                    matrix = FORMS[form](a, b, values, dense=True, **kwargs)
                assert out.dtype == matrix.dtype == torch.bfloat16
                assert error(out, expected) < 2e-2
                assert error(matrix, expected) < 1e-2
    with torch.autocast('cpu', torch.bfloat16):
        a, b, v = (t.double() for t in (a, b, v))
        out = FORMS[form](a, b, v)
        sparse = FORMS[form](
            a.bfloat16(), b.bfloat16(), v.bfloat16(), mask=graph()
        )
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
    given = [t.float() if autocast else t for t in (x, x, v)]
    with torch.autocast('cpu', dtype, enabled=autocast):
        got = gradients(FORMS['metric'], given)
    for one, other in zip(got, expected):
        assert error(one, other) < 1e-2


@pytest.mark.parametrize(
    'form',
    [
        pytest.param(lambda keep: keep, id='one mask'),
        pytest.param(
            lambda keep: keep.expand(2, N, N).clone(), id='a mask a sample'
        ),
    ],
)
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
            sent = propagate(
                a, b, v, 2 / EPS, b[:, :-1].mean(1, keepdim=True), mask
            )  # as on other devices
        assert error(sent, out) < 5e-2


@pytest.mark.parametrize('distance', [1e14, 1e15, 1e17])
def test_a_shut_source_at_the_receiver(distance):
    """However far the others are, in whatever form it is shut out."""
    a = torch.tensor([[0.0], [distance]])
    v, keep = torch.tensor([[100.0], [1.0]]), torch.tensor([[False, True]])
    for needs in (False, True):
        out = metric_propagation(
            a, a.clone().requires_grad_(needs), v, 1.0, keep
        )
        assert out.tolist() == [[1.0], [1.0]]


@not_on_torch_21('has no batching rule for its attention kernel')
@pytest.mark.parametrize('dense', [False, True])
def test_gradients_of_each_sample(dense):
    """Of padded tokens, each under its own mask."""
    a, b, v = points(4)
    mask = torch.rand(4, 1, b.shape[-2]) > 0.4
    mask[..., 0] = True

    def loss(b, a, v, mask, dense=dense):
        return metric_propagation(a, b, v, EPS, mask, dense=dense).sin().sum()

    each = torch.func.vmap(torch.func.grad_and_value(loss))
    with warnings.catch_warnings():
        # PyTorch batches its kernel by a loop, and says so.
        warnings.filterwarnings('ignore', message='There is a performance')
        gradient, value = each(b, a, v, mask)
        with pytest.raises(ValueError, match='leaves no source'):
            each(b, a, v, mask & (torch.arange(4) != 2)[:, None, None])
    b.requires_grad_()
    wanted = loss(b, a, v, mask, True)
    assert error(value.sum(), wanted.detach()) < 1e-10
    assert error(gradient, *torch.autograd.grad(wanted, b)) < 1e-10


def exported(model, x):
    dim = torch.export.Dim('tokens', min=2, max=4096)
    return torch.export.export(
        model, (x,), dynamic_shapes=({1: dim},)
    ).module()


@pytest.mark.filterwarnings('ignore::torch.jit.TracerWarning')
@pytest.mark.parametrize(
    'make',
    [
        torch.jit.trace,
        pytest.param(exported, marks=not_on_torch_21('has another exporter')),
    ],
)
def test_graphs_for_any_number_of_tokens(make):
    model = MetricAttention(16, 2).eval()
    for tokens in (10, 40):
        graph = make(model, torch.randn(2, tokens, 16))
        for other in (5, 300):
            x = torch.randn(2, other, 16)
            torch.testing.assert_close(graph(x), model(x))


@not_on_torch_21("breaks the graph at autocast's dtype")
@pytest.mark.parametrize('form', FORMS)
def test_compiled_code_refuses_a_row_without_a_source(form):
    """Padding on the left leaves the first rows nothing to see."""
    torch.compiler.reset()
    compiled = torch.compile(FORMS[form], backend='aot_eager', fullgraph=True)
    a, b, v = points(2)
    mask = torch.ones(2, 1, N, dtype=torch.bool)
    mask[..., :5] = False
    for kwargs in (dict(mask=mask), dict(mask=mask.expand(2, N, N))):
        out = compiled(a, b, v, **kwargs)
        assert error(out, by_numpy(form, a, b, v, **kwargs)) < 1e-10
    with pytest.raises(RuntimeError, match='leaves no source'):
        compiled(a, b, v, is_causal=True, **kwargs)
    out = compiled(a, b, v, is_causal=True, mask=mask)
    assert error(out, by_numpy(form, a, b, v, mask, True)) < 1e-10
    mask[0] = False
    with pytest.raises(RuntimeError, match='leaves no source'):
        compiled(a, b, v, is_causal=True, mask=mask)
