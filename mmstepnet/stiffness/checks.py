"""What the functions of this package take, and what they refuse."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

ArrayLike = Tensor | np.ndarray | list | tuple | float
"""Tensor, NumPy array or (nested) numbers."""


Array = Tensor | np.ndarray
"""What comes back: a tensor if any argument was one, else a NumPy array."""


def to_float64(**values: ArrayLike) -> tuple[list[Tensor], Callable]:
    """Bring named arguments to float64.

    Args:
        **values: Tensors on one device, NumPy arrays, sequences or numbers.

    Returns:
        tuple: The values as float64 tensors, and a function that gives a
        result back: as a tensor if any of the values was one, else as a
        NumPy array.

    Raises:
        TypeError: A value is not numeric, or is complex.
        ValueError: A value is NaN or infinite.
    """
    devices = [v.device for v in values.values() if isinstance(v, Tensor)]
    tensors = []
    for name, value in values.items():
        if not isinstance(value, Tensor):
            value = _numbers(name, value).to(
                devices[0] if devices else 'cpu')
        if value.is_complex():
            raise TypeError(f'{name} must be real, got {value.dtype}')
        value = value.detach().to(torch.float64)
        # The sum is one pass; a finite one proves that all are finite.
        if (not torch.isfinite(value.sum())
                and not torch.isfinite(value).all()):
            raise ValueError(
                f'{name} holds NaN or infinity, first at index '
                f'{first_index(~torch.isfinite(value))}; expected finite '
                f'values')
        tensors.append(value)
    return tensors, _same if devices else Tensor.numpy


def first_index(mask: Tensor) -> tuple[int, ...]:
    """Index of the first True."""
    return tuple(mask.nonzero()[0].tolist())


def check_shape(name: str, value: Tensor, shape: Iterable[Any]) -> None:
    """Refuse another shape.

    Args:
        name (str): What the message calls it.
        value (Tensor): Its value.
        shape (Iterable): Sizes; a letter stands for any size above zero.

    Raises:
        ValueError: The shape differs.
    """
    shape = tuple(shape)
    if value.dim() != len(shape) or any(
            have != want if isinstance(want, int) else have == 0
            for have, want in zip(value.shape, shape)):
        wanted = ', '.join(map(str, shape))
        raise ValueError(f'{name} must have shape ({wanted}) without empty '
                         f'dimensions, got {tuple(value.shape)}')


def _numbers(name: str, value: ArrayLike) -> Tensor:
    array = np.asarray(value)
    if array.dtype.kind not in 'biuf':
        raise TypeError(f'{name} must be a tensor, a NumPy array or real '
                        f'numbers, got {type(value).__name__} of '
                        f'{array.dtype}')
    return torch.from_numpy(array.astype(np.float64))


def _same(value: Tensor) -> Tensor:
    return value
