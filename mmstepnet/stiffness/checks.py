"""The arguments of this package's mathematics, checked in one place."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

ArrayLike = Tensor | np.ndarray | list | tuple | float
"""Tensor, NumPy array or (nested) numbers."""

Array = Tensor | np.ndarray
"""A result: a tensor if any argument was one, else a NumPy array."""


def to_float64(**values: ArrayLike) -> tuple[list[Tensor], Callable]:
    """Bring named arguments to float64.

    Args:
        **values: Tensors on one device, NumPy arrays, sequences or numbers.

    Returns:
        tuple: The values as float64 tensors, and a function that gives a
        result back: as a tensor if any of the values was one, else as a
        NumPy array.

    Raises:
        TypeError: A value is not numeric, or complex.
        ValueError: A value is NaN or infinite.
    """
    given = [value for value in values.values() if isinstance(value, Tensor)]
    tensors = []
    for name, value in values.items():
        if not isinstance(value, Tensor):
            value = torch.as_tensor(
                np.array(value), device=given[0].device if given else None
            )
        if value.is_complex():
            raise TypeError(f'{name} is complex, expected real numbers')
        value = value.detach().double()
        if not value.isfinite().all():
            raise ValueError(
                f'{name} holds NaN or infinity, first at index '
                f'{first_index(~value.isfinite())}; expected finite values'
            )
        tensors.append(value)
    return tensors, (lambda value: value) if given else Tensor.numpy


def first_index(mask: Tensor) -> tuple[int, ...]:
    """Index of the first True."""
    return tuple(mask.nonzero()[0].tolist())


def check_shape(name: str, value: Tensor, shape: Iterable[Any]) -> None:
    """Refuse another shape.

    Args:
        name (str): Name of the argument.
        value (Tensor): Its value.
        shape (Iterable): Sizes; a letter stands for any size above zero.

    Raises:
        ValueError: The shape differs.
    """
    shape = tuple(shape)
    if value.dim() != len(shape) or any(
        have != want if isinstance(want, int) else have == 0
        for have, want in zip(value.shape, shape)
    ):
        wanted = ', '.join(map(str, shape))
        raise ValueError(
            f'{name} must have shape ({wanted}) without empty '
            f'dimensions, got {tuple(value.shape)}'
        )


def check_trajectories(nsi: Tensor, stages: Tensor) -> None:
    """Refuse what is no stiffness of N samples at L blocks.

    Args:
        nsi (Tensor): Their NSI, (N, L).
        stages (Tensor): Stage of each block, (L,).

    Raises:
        ValueError: Shapes do not fit, there is no sample or no block, or a
            value is negative.
    """
    check_shape('nsi', nsi, 'NL')
    check_shape('stages', stages, nsi.shape[1:])
    if nsi.amin() < 0:
        where = first_index(nsi < 0)
        raise ValueError(
            f'nsi is a ratio of norms and not negative, got '
            f'{nsi[where].item():g} at index {where}'
        )
