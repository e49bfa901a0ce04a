"""Who sees whom: sources that nobody sees, NaN, masks and neighbours."""

import itertools
import math
import warnings

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from mmstepnet.propagation import (
    metric_propagation,
    neighbourhood,
    pseudo_metric_propagation,
)
from mmstepnet.propagation.functional import squared_distance
from mmstepnet.propagation.masks import check_mask

from .references import FORMS, points


def definition(a, b, v, dense, **kwargs):
    return pseudo_metric_propagation(squared_distance, a, b, v, **kwargs)


WAYS = [*FORMS.values(), definition]


@pytest.mark.parametrize('dense', [False, True])
@pytest.mark.parametrize('way', WAYS, ids=[*FORMS, 'definition'])
@pytest.mark.parametrize('value', [math.nan, math.inf, -math.inf, 1e30])
@pytest.mark.parametrize('of', [1, 2], ids=['sources', 'values'])
@pytest.mark.parametrize('causal', [False, True])
def test_what_nobody_sees_may_be_anything(way, dense, value, of, causal):
    given = points(2, n=20, m=20, dtype=torch.float32)
    keys = (torch.arange(20) < 15).expand(2, 1, 20)
    some = keys.repeat(1, 20, 1)
    some[0, 3:, 2] = False
    for mask in (keys, some):
        kwargs = dict(mask=mask, dense=dense, is_causal=causal)
        clean = [t.clone().requires_grad_() for t in given]
        expected = way(*clean, **kwargs)
        spoilt = [t.clone() for t in given]
        spoilt[of][:, 15:] = value
        spoilt = [t.requires_grad_() for t in spoilt]
        out = way(*spoilt, **kwargs)
        torch.testing.assert_close(out, expected, atol=1e-5, rtol=0)
        with torch.no_grad():
            torch.testing.assert_close(
                way(*spoilt, **kwargs), expected, atol=1e-5, rtol=0
            )
        weights = torch.randn(expected.shape)
        torch.testing.assert_close(
            torch.autograd.grad((out * weights).sum(), spoilt),
            torch.autograd.grad((expected * weights).sum(), clean),
            atol=1e-4,
            rtol=0,
        )


@pytest.mark.parametrize('nodes, node', [(2, 1), (17, 5), (40, 39)])
@pytest.mark.parametrize('which', range(3))
def test_nan_is_seen(which, nodes, node):
    """By every point that it informs, and in its own sample alone."""
    for is_causal, grad in itertools.product((False, True), repeat=2):
        tensors = [*torch.randn(3, 2, nodes, 3)]
        tensors[which][1, node, 2] = torch.nan
        tensors[0].requires_grad_(grad)
        got = (
            metric_propagation(*tensors, 1.0, is_causal=is_causal)
            .isnan()
            .any(-1)
        )
        expected = torch.zeros(2, nodes, dtype=torch.bool)
        expected[
            1,
            slice(node, node + 1)
            if which == 0
            else slice(node if is_causal else 0, None),
        ] = True
        # A kernel may multiply by the weight 0 what is later.
        assert (
            torch.equal(got, expected)
            or is_causal
            and (got >= expected).all()
            and not got[0].any()
        )


@pytest.mark.parametrize('form', FORMS)
def test_second_derivatives_of_the_dense_form(form):
    given = [t.requires_grad_() for t in points(n=3, m=4, d=2, e=2)]
    assert torch.autograd.gradgradcheck(
        lambda *t: FORMS[form](*t, dense=True), given
    )


def test_no_wait_for_a_gpu():
    """A fake tensor raises where its value would be asked for."""
    with FakeTensorMode():
        mask = torch.ones(4, 4, dtype=torch.bool, device='cuda')
        for is_causal in (False, True):
            assert check_mask(mask, 4, 4, is_causal) is mask
            check_mask(mask[:1], 4, 4, is_causal)
        with pytest.raises(Exception, match='data-dependent|_local_scalar'):
            bool(mask.all())


@pytest.mark.parametrize('both', [False, True])
def test_neighbourhood(both):
    """Of edges; one that is given twice counts once."""
    pairs = (0, 1), (3, 1), (0, 4)
    edges = torch.tensor(pairs)
    if both:
        edges = torch.cat([edges, edges.flip(1)])
    a, b, v = points(n=5, m=5)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        mask = neighbourhood(edges, 5)
        out = metric_propagation(a, b, v, 1.0, mask)
    expected = torch.eye(5, dtype=torch.bool)
    for i, j in pairs:
        expected[i, j] = expected[j, i] = True
    assert mask.dtype == torch.bool and mask.is_coalesced()
    assert torch.equal(mask.to_dense(), expected)
    # What says of itself that it is coalesced, is.
    assert torch.equal(mask.indices(), expected.to_sparse().indices())
    twice = mask.indices().repeat(1, 2)
    torch.testing.assert_close(
        metric_propagation(
            a,
            b,
            v,
            1.0,
            torch.sparse_coo_tensor(
                twice, torch.ones(twice.shape[1], dtype=torch.bool), (5, 5)
            ),
        ),
        out,
    )
