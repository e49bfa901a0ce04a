"""What attention and propagation refuse."""

import math

import pytest
import torch

from mmstepnet.propagation import (
    MetricAttention,
)
from tests.test_propagation.test_attention import (
    BLOCKS,
    MODULES,
)


class TestBadInput:

    @pytest.mark.parametrize('cls', BLOCKS)
    def test_heads(self, cls):
        with pytest.raises(ValueError, match='divide.*5 heads for 12'):
            cls(12, 5)
        for name in ('embed_dims', 'num_heads'):
            for value in (0, -4, 2.0, None, '4'):
                args = dict(embed_dims=4, num_heads=2) | {name: value}
                with pytest.raises(ValueError, match=f'{name} must be a '
                                   'positive integer, got'):
                    cls(**args)

    @pytest.mark.parametrize('cls', MODULES)
    def test_eps(self, cls):
        for eps in (0, -1.0, math.nan, math.inf, True, None, 'auto'):
            with pytest.raises(ValueError, match='eps'):
                cls(4, eps=eps)

    def test_hidden_dims(self):
        for value in (0, 1.5, '4'):
            with pytest.raises(ValueError, match='hidden_dims'):
                MetricAttention(4, hidden_dims=value)

    @pytest.mark.parametrize('cls', MODULES)
    def test_forward(self, cls):
        module = cls(8, 2)
        x = torch.randn(2, 5, 8)
        for args, error, message in (
            ((x[..., :6], ), ValueError, r'x must be \(..., points, 8\)'),
            ((x, x[..., :6]), ValueError, r'sources must be'),
            ((x[0, 0], ), ValueError, 'x must be'),
            ((x, x[0]), ValueError, 'do not fit'),
            ((x[:, :0], ), ValueError, 'a dimension is 0'),
        ):
            with pytest.raises(error, match=message):
                module(*args)
        for mask, error, message in (
            (torch.ones(2, 5), TypeError, 'must be a bool tensor'),
            ([[True]], TypeError, 'got list'),
            (torch.ones(2, 5, dtype=torch.bool), ValueError, 'broadcast'),
            (torch.ones(2, 4, 5, dtype=torch.bool), ValueError, 'broadcast'),
            (torch.zeros(2, 1, 5, dtype=torch.bool), ValueError,
             'no source'),
        ):
            for dense in (False, True):
                with pytest.raises(error, match=message):
                    module(x, mask=mask, dense=dense)
