"""Records of a pass: calls of modules, and the sums that they made."""

from dataclasses import dataclass, field
from typing import Any

import torch.nn as nn

Product = tuple[str, int]
"""A product with a gate: the module that multiplies, and which of its."""


@dataclass(eq=False)
class Call:
    """One call of a module in a pass.

    Attributes:
        name (str): Name of the module.
        module (nn.Module): The module.
        outer (Call, optional): The one that called it.
        learns (bool): Whether the module has weights.
        is_closed (bool): Whether it is, or runs inside, an
            :class:`~.observed.ObservedStep`, which reports what it does
            itself, or an LSTM, which PyTorch takes apart (Sequencer).
        known (int): The states that what it was given was computed from, as
            bits.
        given (int): The states that it was given.
        shapes (set[tuple]): Shapes of these, and in the end those among them
            that it returned.
        returned (set[int]): States that it returned.
        sums (list[Sum]): What it added, by itself.
        inner (list[Call]): Those that it called.
    """

    name: str
    module: nn.Module
    outer: 'Call | None'
    learns: bool
    is_closed: bool
    known: int = 0
    given: int = 0
    shapes: set[tuple] = field(default_factory=set)
    returned: set[int] = field(default_factory=set)
    sums: list['Sum'] = field(default_factory=list)
    inner: list['Call'] = field(default_factory=list)

    def encloses(self, other: 'Call | None') -> bool:
        """Whether another call is this one, or inside of it."""
        while other is not None and other is not self:
            other = other.outer
        return other is self


@dataclass(eq=False)
class Sum:
    """A sum that is a residual step, or that might be taken for one.

    Attributes:
        owner (Call): The one whose code added.
        shape (tuple): Of the state.
        state (int): Number of the state x_t; 0 where there is none.
        number (int): Number of the sum.
        of_state (int): States that x_t was computed from; both operands where
            none of them is the state.
        of_branch (int): States that f was computed from; any operand there.
        branches (int): How many are added, one after the other.
        gate (tuple, optional): Shape of the attention value.
        product (Product, optional): Where the branch, or one operand, was
            multiplied by it.
        is_constant (bool): Whether the branch, or one operand, was multiplied
            by numbers or weights alone.
        part (str, optional): Name of the step that reported it.
        left_out (str, optional): Why it is no step that is measured.
        returned (bool): Whether its owner returns it, up to what works
            element by element.
        values (tuple): Its memory and version, which a multiple has not.
        norms (optional): What measures it, such as a
            :class:`~mmstepnet.stiffness.measurement.StepMeasurement`.
    """

    owner: Call
    shape: tuple[int, ...]
    state: int = 0
    number: int = 0
    of_state: int = 0
    of_branch: int = 0
    branches: int = 1
    gate: tuple[int, ...] | None = None
    product: Product | None = None
    is_constant: bool = False
    part: str | None = None
    left_out: str | None = None
    returned: bool = False
    values: tuple = ()
    norms: Any = None

    def is_in_branch_of(self, other: 'Sum') -> bool:
        """Whether one operand of another sum was computed from this alone."""
        return bool(
            other is not self
            and other.of_branch >> self.number & 1
            and not other.of_state >> self.number & 1
        )
