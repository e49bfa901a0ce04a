"""What propagation refuses: the call, the error and a word of its text."""

import math

import pytest
import torch

from mmstepnet.propagation import (
    DotProductAttention,
    GraphAttention,
    Metric,
    MetricAttention,
    Propagation,
    dot_product_propagation,
    metric_propagation,
    neighbourhood,
)

from .references import points

LEFT = torch.tensor([False, True, True, True])
HOLE = torch.ones(4, 4, dtype=torch.bool)  # row 2 has no source
HOLE[2] = False


def take(mask=None, eps=1.0, **kwargs):
    """Propagate four points of (2, 3) groups."""
    a, b, v = (torch.randn(2, 3, 4, 5) for _ in range(3))
    return metric_propagation(a, b, v, eps, mask, **kwargs)


def shapes(*of, dtypes=(torch.float32,) * 3):
    return lambda: [
        function(*(torch.ones(s, dtype=t) for s, t in zip(of, dtypes)))
        for function in (metric_propagation, dot_product_propagation)
    ]


REFUSED = {
    **{
        f'eps {eps!r}': (lambda eps=eps: take(eps=eps), ValueError, 'eps')
        for eps in (5e-324, 0, -1.0, math.nan, math.inf, True, '1')
    },
    **{
        f'shapes {of}': (shapes(*of), ValueError, 'are needed, M, d and e')
        for of in (
            ((3,), (5, 3), (5, 2)),
            ((4, 3), (5, 2), (5, 2)),
            ((4, 3), (5, 3), (6, 2)),
            ((2, 4, 3), (5, 3), (5, 2)),
            ((4, 3), (0, 3), (0, 2)),
            ((4, 0), (5, 0), (5, 2)),
        )
    },
    **{
        f'dtypes {of}': (
            shapes(*[(2, 2)] * 3, dtypes=of),
            ValueError,
            'one floating dtype',
        )
        for of in (
            (torch.float32, torch.float64, torch.float32),
            (torch.int64,) * 3,
        )
    },
    **{
        f'mask {shape}': (
            lambda shape=shape: take(torch.ones(shape, dtype=torch.bool)),
            ValueError,
            r'broadcast to \(2, 3, 4, 4\)',
        )
        for shape in ((4, 3), (2, 4, 4), (4,), (1, 2, 3, 4, 4))
    },
    **{
        f'{kind} as a mask': (
            lambda mask=mask: take(mask),
            TypeError,
            'bool tensor.*becomes mask == 0',
        )
        for kind, mask in (
            ('numbers', torch.ones(4, 4)),
            ('sparse numbers', torch.ones(4, 4).to_sparse()),
            ('a list', [[True]]),
        )
    },
    **{
        f'no source {dense}': (
            lambda dense=dense: take(HOLE, dense=dense),
            ValueError,
            'leaves no source',
        )
        for dense in (False, True)
    },
    'no neighbour': (
        lambda: take(HOLE.to_sparse()),
        ValueError,
        'no neighbour',
    ),
    'causal leaves nothing': (
        lambda: take(LEFT.expand(4, 4), is_causal=True),
        ValueError,
        'no source',
    ),
    'sparse and causal': (
        lambda: take(torch.eye(4).bool().to_sparse(), is_causal=True),
        ValueError,
        'without is_causal',
    ),
    'sparse, shape': (
        lambda: take(torch.ones(4, 5).bool().to_sparse()),
        ValueError,
        r'\(4, 4\)',
    ),
    'sparse, stored False': (
        lambda: take(
            torch.sparse_coo_tensor(
                torch.arange(4).expand(2, 4), torch.arange(4) != 2, (4, 4)
            )
        ),
        ValueError,
        'stores False',
    ),
    'edges, shape': (
        lambda: neighbourhood(torch.zeros(2, 3).long(), 4),
        ValueError,
        'edge_index is edges.T',
    ),
    'edges, dtype': (
        lambda: neighbourhood(torch.zeros(2, 2), 4),
        ValueError,
        'float32',
    ),
    'heads': (lambda: DotProductAttention(12, 5), ValueError, '5 heads'),
    'width': (lambda: Propagation(0), ValueError, 'embed_dims'),
    'hidden': (lambda: Metric(8, hidden_dims=0), ValueError, 'hidden_dims'),
    'activation': (
        lambda: GraphAttention(6, activation='relu'),
        ValueError,
        'one of leaky_relu, tanh',
    ),
    'points': (
        lambda: MetricAttention(8, 2)(torch.ones(5, 6)),
        ValueError,
        r'x must be \(..., points, 8\)',
    ),
    'sources': (
        lambda: MetricAttention(8, 2).project(torch.ones(8)),
        ValueError,
        'sources must be',
    ),
    'query, key and value': (
        lambda: MetricAttention(8, 2)(*[torch.ones(5, 8)] * 3),
        TypeError,
        r'in place of attention\(query, key, value\)\[0\] call attention\(x\)',
    ),
    **{
        f'{name} of multi-head attention': (
            lambda name=name: Propagation(8)(torch.ones(5, 8), **{name: LEFT}),
            TypeError,
            f'Propagation takes no {name}: {text}',
        )
        for name, text in (
            ('key_padding_mask', r'give mask=~key_padding_mask\[:, None\]'),
            ('attn_mask', 'give mask=~attn_mask'),
            ('need_weights', 'leave it out'),
            ('masks', 'it takes sources, mask, is_causal and dense'),
        )
    },
    'float16 and a large eps': (
        lambda: metric_propagation(
            *points(1, 1, dtype=torch.float16),
            1e9,
            torch.arange(33)[None] < 32,
        ),
        ValueError,
        'float16 cannot close',
    ),
}


@pytest.mark.parametrize('name', REFUSED)
def test_refused(name):
    call, error, text = REFUSED[name]
    with pytest.raises(error, match=text):
        call()
