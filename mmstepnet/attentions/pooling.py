"""Statistics of maps that channel gates are given, one (N, C) each."""

from collections.abc import Callable
from functools import wraps

import torch
import torch.nn as nn
from torch import Tensor
from torch.fx import Proxy

from mmstepnet import precision

EPS = 1e-5
"""Added to a variance, so that a constant map has a gradient."""


def leaf(function: Callable) -> Callable:
    """Make a function one node of graphs that torch.fx traces.

    Such a function reads dtypes or sizes, which a trace does not know.
    """

    @wraps(function)
    def call(*args, **kwargs):
        for arg in args:
            if isinstance(arg, Proxy):
                return arg.tracer.create_proxy(
                    'call_function', call, args, kwargs
                )
        return function(*args, **kwargs)

    return call


def weight_dtype(layer: nn.Module) -> torch.dtype:
    """Dtype of a layer's input; a quantised layer takes float32.

    A trace by torch.fx keeps the dtype as a constant. It must not keep the
    weight, because a network that is made of the trace may have none.
    """
    weight = layer._parameters.get('weight')
    if weight is None:  # FSDP's view of it, or a quantised layer's method
        weight = getattr(layer, 'weight', None)
    return weight.dtype if isinstance(weight, Tensor) else torch.float32


full_precision = leaf(precision.full_precision)


@leaf
def pool(x: Tensor) -> Tensor:
    """Global average pooling, (N, C, H, W) -> (N, C).

    In float32 or better: half precision cannot hold a large map's sum.
    """
    return x.mean((2, 3), dtype=precision.accumulation_dtype(x.dtype))


@leaf
def pool_std(x: Tensor) -> Tensor:
    """Global standard deviation pooling, (N, C, H, W) -> (N, C).

    The deviation of the population, hence defined for a map of one pixel;
    1e-5 is added to the variance, so that a constant map has a gradient. In
    float32 or better.
    """
    return (full_precision(x).var((2, 3), correction=0) + EPS).sqrt()


STATISTICS = {
    'x_mean': lambda x, f: pool(x),
    'x_std': lambda x, f: pool_std(x),
    'f_mean': lambda x, f: pool(f),
    'f_std': lambda x, f: pool_std(f),
}
"""Vectors that a channel gate may ask for, computed from x and f."""
