"""Tags of tensors while a model runs: the states that they come from.

States are numbered, and sets of them are the bits of an integer, so that a
union costs one operation however many states a network has.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


@dataclass
class Factor:
    """A tensor as a product.

    Attributes:
        of (Tensor): What was multiplied.
        gate (Tensor, optional): By what, one number an image and channel;
            None where it was stochastic depth, one number an image.
        known (int): States that the gate was computed from.
        scales (tuple): Numbers and weights that it was multiplied by, too.
    """

    of: Tensor
    gate: Tensor | None = None
    known: int = 0
    scales: tuple = ()


class Tag:
    """Facts about a piece of memory.

    It refers to the memory weakly. While it does, no other memory gets the
    same address, so that memory that is used again inherits nothing.

    Attributes:
        plain (int): States that it was computed from by a way without any
            contraction.
        mixed (int): States that it was computed from by one.
        views (dict): Numbers of the states in it, by offset and size: slices
            of one piece of memory are different states, a state in another
            layout is the same.
        random (bool): Whether it holds random numbers.
        version (int): How often it was written.
        factor (Factor, optional): If it is a product.
        divided (Tensor, optional): If it is this one, divided by a number.
        scaled (bool): Whether it is a multiple, by numbers or weights.
    """

    _free = torch.UntypedStorage._free_weak_ref

    def __init__(self, storage: torch.UntypedStorage):
        self.weak = storage._weak_ref()
        self.plain = self.mixed = self.version = 0
        self.views: dict[tuple, int] = {}
        self.random = False
        self.factor: Factor | None = None
        self.divided: Tensor | None = None
        self.scaled = False

    def __del__(self):
        self._free(self.weak)

    @property
    def known(self) -> int:
        """States that it was computed from."""
        return self.plain | self.mixed


class Tags:
    """Tags of all tensors of one forward pass, by their memory."""

    def __init__(self):
        self.of_storage: dict[int, Tag] = {}
        self.count = 0

    def get(self, t: Tensor) -> Tag | None:
        """Tag of a tensor, if anything is known of it."""
        return self.of_storage.get(t.untyped_storage()._cdata)

    def get_all(self, values: Iterable) -> list[Tag]:
        """Tags of those tensors, also in lists, of which anything is known."""
        tags = []
        for t in tensors(*values):
            if t.layout is torch.strided:
                tag = self.get(t)
                # Weights have none, and are most: is_real comes last.
                if tag is not None and is_real(t):
                    tags.append(tag)
        return tags

    def make(self, t: Tensor) -> Tag:
        """Tag of a tensor, a new one if need be."""
        storage = t.untyped_storage()
        tag = self.of_storage.get(storage._cdata)
        if tag is None:
            tag = self.of_storage[storage._cdata] = Tag(storage)
        return tag

    @staticmethod
    def view(t: Tensor) -> tuple:
        """Identify the values of a tensor: memory, offset and size."""
        return t.untyped_storage()._cdata, t.storage_offset(), t.numel()

    def number(self, t: Tensor) -> int:
        """Number of a tensor that is a state; 0 of others."""
        tag = self.get(t)
        return tag.views.get((t.storage_offset(), t.numel()), 0) if tag else 0

    def states_around(self, t: Tensor) -> list[int]:
        """Numbers of the larger states that a tensor is a slice of."""
        tag = self.get(t)
        if tag is None:
            return []
        start = t.storage_offset()
        numbers = []
        for (offset, size), number in tag.views.items():
            if offset <= start < offset + size and t.numel() < size:
                numbers.append(number)
        return numbers

    def mark(self, t: Tensor, number: int = 0) -> int:
        """Make a tensor the state of a number, or a new one; return it."""
        if not number:
            self.count += 1
            number = self.count
        tag = self.make(t)
        tag.views[t.storage_offset(), t.numel()] = number
        tag.plain |= 1 << number
        return number


def is_real(t: object) -> bool:
    """Whether it is a tensor of numbers that a state can have.

    Nested ones have no samples, parts of others cannot be measured, and those
    inside torch.func's transforms have no memory.
    """
    return (
        isinstance(t, Tensor)
        and (t.dtype.is_floating_point or t.dtype.is_complex)
        and t.layout is torch.strided
        and not t.is_nested
        and not is_traceable_wrapper_subclass(t)
        and not is_functorch_wrapped_tensor(t)
    )


def tensors(*values: object) -> list[Tensor]:
    """All tensors among values and in nested lists, tuples and dicts."""
    flat = []
    for value in values:
        if isinstance(value, Tensor):
            flat.append(value)
        elif isinstance(value, (list, tuple)):
            flat += tensors(*value)
        elif isinstance(value, dict):
            flat += tensors(*value.values())
    return flat


def gate_axis(gate: Tensor, f: Tensor, is_row: bool = False) -> int | None:
    """Axis of the channels in one number an image and channel.

    Args:
        gate (Tensor): A factor, as many dimensions as ``f`` or fewer. Axes
            along which it was expanded count as one number.
        f (Tensor): What it multiplies, (N, C, H, W), (N, H, W, C) or
            (N, L, C), or with more or fewer places.
        is_row (bool): Whether (N, L, C) is (N, C, L). Defaults to False.

    Returns:
        int | None: The axis, 0 if it is one number an image or one for all
        of them, None if it is neither.
    """
    if f.dim() < 2 or gate.dim() > f.dim():
        return None
    sizes = [1] * (f.dim() - gate.dim())
    for size, stride in zip(gate.shape, gate.stride()):
        sizes.append(size if stride else 1)
    wide = [d for d in range(1, f.dim()) if sizes[d] > 1]
    if not wide:
        return 0 if sizes[0] in (1, len(f)) else None
    channels = (1, f.dim() - 1) if f.dim() > 3 else (2 - is_row,)
    if sizes[0] != len(f) or len(wide) > 1 or wide[0] not in channels:
        return None
    return wide[0]


def channels_of(gate: Tensor) -> Tensor:
    """See a gate, perhaps an expanded one, as (N, C)."""
    for axis, stride in enumerate(gate.stride()):
        if stride == 0:
            gate = gate.narrow(axis, 0, 1)
    return gate.view(len(gate), -1)
