"""What an operation of PyTorch does with the states that it is given.

Only names are asked, those of ATen and of PyTorch's own decompositions; what
neither knows is a foreign operator and taken for a contraction.
"""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor

from .tags import is_real

CONTRACTION = re.compile(
    r'conv(?!ert)|mm(_|$)|(^|_)mv|dot$|attention|pool|fft|lstm|gru(_|$)|rnn'
    r'|(^|mkldnn_)linear|cdist|^_trilinear|_encoder_layer'
)
"""Mixes channels or places: only what has passed one is a branch f(x)."""

SAME = {
    '_to_copy',
    'clone',
    'constant_pad_nd',
    'lift_fresh',
    'to_padded',
    'pad',
}
"""Its result is the state that it was given, somewhere else in memory."""

RANDOM = re.compile(r'bernoulli|^rand|uniform|normal')

BLANK = re.compile(r'empty|zeros')
"""Makes memory that is still to be written, perhaps by what no mode sees."""

ADDITIONS = {'add': ((0, 1), (1, 0)), 'sub': ((0, 1),)}
"""Places of the state and of the branch among the arguments."""


class Operation:
    """What an operation does.

    Attributes:
        name (str): Its name in PyTorch, without the ending of one that works
            in place.
        views (bool): Whether it only looks at memory in another way.
        writes (bool): Whether it changes an argument.
        mixes (bool): Whether it is a contraction.
        carries (bool): Whether its result is computed from the values that
            it is given, not from their shape alone.
        random (bool): Whether it draws numbers.
        blank (bool): Whether it makes memory that is still to be written.
        same (bool): Whether its result is the state that it was given.
        scales (bool): Whether it is a product or a quotient.
        pairs (tuple): See :data:`ADDITIONS`.
    """

    views = writes = random = blank = same = scales = False
    mixes = carries = True
    pairs: tuple = ()

    def __init__(self, func: Any):
        if not isinstance(func, torch._ops.OpOverload):  # of higher order
            self.name = str(func)
            return
        self.name = name = func.overloadpacket.__name__.removesuffix('_')
        schema = func._schema
        aliases = [value.alias_info for value in schema.returns]
        foreign = func.namespace not in ('aten', 'prims', 'prim')
        self.views = (
            name == '_unsafe_view'
            or bool(aliases)
            and not schema.is_mutable
            and all(aliases)
        )
        self.writes = schema.is_mutable
        self.mixes = foreign or bool(CONTRACTION.search(name))
        self.carries = not re.search(r'_like$|^new_', name)
        self.random = bool(RANDOM.search(name))
        self.blank = bool(BLANK.search(name))
        self.same = name in SAME
        self.scales = name in ('mul', 'div')
        self.pairs = () if foreign else ADDITIONS.get(name, ())

    def operands(self, args: tuple) -> Iterator[tuple[Tensor, Tensor]]:
        """What may be the state, and the branch that is added to it."""
        for i, j in self.pairs:
            if (
                max(i, j) < len(args)
                and is_real(args[i])
                and is_real(args[j])
                and args[i].shape == args[j].shape
            ):
                yield args[i], args[j]


describe_operation = cache(Operation)
"""Look at an operation as a dispatch mode is given it."""
