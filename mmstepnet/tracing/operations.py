"""Effects of PyTorch's operations on the states that they are given.

Only names are asked, those of ATen and of PyTorch's own decompositions; what
neither knows is a foreign operator and taken for a contraction.
"""

import re
from functools import cache
from typing import Any

import torch

CONTRACTION = re.compile(
    r'conv(?!ert)|mm(_|$)|(^|_)mv|dot$|attention|pool|fft|lstm|gru(_|$)|rnn'
    r'|(^|mkldnn_)linear|cdist|^_trilinear|_encoder_layer'
)
"""Mixes channels or places: only what has passed one is a branch f(x)."""

SAME = (
    '_to_copy',
    'clone',
    'constant_pad_nd',
    'lift_fresh',
    'to_padded',
    'pad',
)
"""Its result is the state that it was given, somewhere else in memory."""

PRODUCTS = {'mul'}
"""Its result is its first two arguments' product: one may be a gate."""

QUOTIENTS = {'div'}
"""Its result is its first argument, divided by the second one."""

RANDOM = re.compile(r'bernoulli|^rand|uniform|normal')

BLANK = re.compile(r'empty|zeros')
"""Makes memory that is still to be written, perhaps by what no mode sees."""

SHAPE = re.compile(r'_like$|^new_')
"""Its result is computed from the shape that it is given alone."""

OWN = 'aten', 'prims', 'prim'
"""Namespaces of the operations that PyTorch knows."""


class Operation:
    """Properties of an operation.

    Attributes:
        name (str): Its name in PyTorch, without the ending of one that works
            in place; that of a foreign one begins with its namespace.
        views (bool): Whether it only looks at memory in another way.
        writes (bool): Whether it changes an argument.
        mixes (bool): Whether it is a contraction.
        carries (bool): Whether its result is computed from the values that
            it is given.
        random (bool): Whether it draws numbers.
        blank (bool): Whether it makes memory that is still to be written.
    """

    views = writes = random = blank = False
    mixes = carries = True

    def __init__(self, func: Any):
        if not isinstance(func, torch._ops.OpOverload):  # of higher order
            self.name = str(func)
            return
        name = func.overloadpacket.__name__.removesuffix('_')
        is_foreign = func.namespace not in OWN
        self.name = f'{func.namespace}::{name}' if is_foreign else name
        schema = func._schema
        aliases = [value.alias_info for value in schema.returns]
        self.writes = schema.is_mutable
        self.views = name == '_unsafe_view' or (
            bool(aliases) and all(aliases) and not self.writes
        )
        self.mixes = is_foreign or bool(CONTRACTION.search(name))
        self.carries = not SHAPE.search(name)
        self.random = bool(RANDOM.search(name))
        self.blank = bool(BLANK.search(name))


describe_operation = cache(Operation)
"""Look at an operation as a dispatch mode is given it."""
