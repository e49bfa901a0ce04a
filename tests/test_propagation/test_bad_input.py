"""What attention and propagation refuse."""


import pytest
import torch

from tests.test_propagation.test_attention import (
    BLOCKS,
    MODULES,
)


class TestBadInput:

    @pytest.mark.parametrize('cls', BLOCKS)
    def test_heads(self, cls):
        with pytest.raises(ValueError, match='divide.*5 heads for 12'):
            cls(12, 5)

    @pytest.mark.parametrize('cls', MODULES)
    def test_forward(self, cls):
        module = cls(8, 2)
        x = torch.randn(2, 5, 8)
        for args, message in (
            ((x[..., :6], ), r'x must be \(..., points, 8\)'),
            ((x, x[..., :6]), r'sources must be'),
            ((x[0, 0], ), 'x must be'),
            ((x, x[0]), 'do not fit'),
            ((x[:, :0], ), 'a dimension is 0'),
        ):
            with pytest.raises(ValueError, match=message):
                module(*args)
        for dense in (False, True):
            with pytest.raises(TypeError, match='must be a bool tensor'):
                module(x, mask=torch.ones(2, 5), dense=dense)
