"""What an operation of PyTorch does with the states that it is given.

Only names are asked, those of ATen and of PyTorch's own decompositions; what
neither knows is a foreign operator and taken for a contraction.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from .tags import is_real

CONTRACTION = re.compile(
    r'conv(?!ert)|mm(_|$)|(^|_)mv|dot$|attention|pool|fft|lstm|gru(_|$)|rnn'
    r'|(^|mkldnn_)linear|cdist|^_trilinear|_encoder_layer')
"""Mixes channels or places: only what has passed one is a branch f(x)."""

SAME = {'_to_copy', 'clone', 'constant_pad_nd', 'lift_fresh', 'to_padded',
        'pad'}
"""Its result is the state that it was given, somewhere else in memory."""

RANDOM = re.compile(r'bernoulli|^rand|uniform|normal')

BLANK = re.compile(r'empty|zeros')
"""Makes memory that is still to be written, perhaps by what no mode sees."""

ADDITIONS = {
    'add': ((0, 1), (1, 0)),
    'sub': ((0, 1), ),
    'lerp': ((0, 1), ),
    'addcmul': ((0, 1), (0, 2)),
    'addcdiv': ((0, 1), ),
}
"""Places of the state and of the branch among the arguments."""


@dataclass(frozen=True)
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
        last (int, optional): How many arguments, from the first, may be
            tensors or hold some. None where it does not say.
    """

    name: str
    views: bool = False
    writes: bool = False
    mixes: bool = False
    carries: bool = True
    random: bool = False
    blank: bool = False
    same: bool = False
    scales: bool = False
    pairs: tuple = ()
    last: int | None = None

    def operands(self, args: tuple) -> Iterator[tuple[Tensor, Tensor]]:
        """What may be the state, and the branch that is added to it."""
        for i, j in self.pairs:
            if max(i, j) < len(args) and is_real(args[i]) and is_real(
                    args[j]) and args[i].shape == args[j].shape:
                yield args[i], args[j]


@cache
def describe_operation(func: object) -> Operation:
    """Look at an operation as a dispatch mode is given it."""
    if not isinstance(func, torch._ops.OpOverload):  # of higher order
        return Operation(str(func), mixes=True)
    name = func.overloadpacket.__name__.removesuffix('_')
    schema = func._schema
    aliases = [value.alias_info for value in schema.returns]
    foreign = func.namespace not in ('aten', 'prims', 'prim')
    return Operation(
        name,
        views=name == '_unsafe_view' or bool(
            aliases) and not schema.is_mutable and all(aliases),
        writes=schema.is_mutable,
        mixes=foreign or bool(CONTRACTION.search(name)),
        carries=not re.search(r'_like$|^new_', name),
        random=bool(RANDOM.search(name)),
        blank=bool(BLANK.search(name)),
        same=name in SAME,
        scales=name in ('mul', 'div'),
        pairs=() if foreign else ADDITIONS.get(name, ()),
        last=max((i + 1 for i, argument in enumerate(schema.arguments)
                  if 'Tensor' in str(argument.type)), default=0))
