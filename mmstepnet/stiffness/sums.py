"""What a pass leaves behind: runs of modules, and the sums that they made."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.nn as nn
from torch import Tensor
from torch.utils._mode_utils import no_dispatch

from .readings import StepNorms
from .sample_norms import measure_branch, norm, norm_and_distance


@dataclass(eq=False)
class Run:
    """One run of a module.

    Attributes:
        name (str): Name of the module.
        module (nn.Module): The module.
        outer (Run, optional): The run that called it.
        learns (bool): Whether the module has weights.
        told (bool): Whether it is, or runs inside, a
            :class:`~mmstepnet.ResidualStep`, which tells its step itself.
        views (list): What it was given, if it has no weights: memory, offset
            and size.
        given (int): The states among that, as bits.
        states (int): These and what its children were given.
        returned (set[int]): States that it returned.
        sums (list[Sum]): What it added, by itself.
        inner (list[Run]): The runs that it called.
        additions (int): How many pairs of tensors it added.
    """

    name: str
    module: nn.Module
    outer: 'Run | None'
    learns: bool
    told: bool
    views: list[tuple]
    given: int
    states: int
    returned: set[int] = field(default_factory=set)
    sums: list['Sum'] = field(default_factory=list)
    inner: list['Run'] = field(default_factory=list)
    additions: int = 0

    def encloses(self, other: 'Run | None') -> bool:
        """Whether another run is this one, or inside of it."""
        while other is not None and other is not self:
            other = other.outer
        return other is self


@dataclass(eq=False)
class Sum:
    """A sum that is a residual step, or that might be taken for one.

    Attributes:
        owner (Run): The run whose code added.
        ordinals (list[int]): Which of the owner's additions it is; several
            where branches are added one by one.
        shape (tuple): Of the state.
        state (int): Number of the state x_t; 0 where there is none.
        number (int): Number of the sum.
        operands (set[int]): Numbers of both operands.
        of_state (int): States that x_t was computed from.
        of_branch (int): States that f was computed from.
        gate (tuple, optional): Shape of the attention value.
        activation (str, optional): What the block does with the sum.
        part (str, optional): Name of the ResidualStep that told it.
        left_out (str, optional): Why it is no step that is measured.
        returned (bool): Whether its owner returns it, up to what works
            element by element.
        norms (Norms, optional): Its norms, if they are measured.
    """

    owner: Run
    ordinals: list[int]
    shape: tuple[int, ...]
    state: int = 0
    number: int = 0
    operands: set[int] = field(default_factory=set)
    of_state: int = 0
    of_branch: int = 0
    gate: tuple[int, ...] | None = None
    activation: str | None = None
    part: str | None = None
    left_out: str | None = None
    returned: bool = False
    version: int = 0
    norms: 'Norms | None' = None


@contextmanager
def hidden() -> Iterator[None]:
    """Hide operations from autograd and from all dispatch modes."""
    with torch.no_grad(), no_dispatch():
        yield


class Norms:
    """Norms of one step, taken while its tensors are there.

    The state is kept until it is known what the block returns.

    Args:
        x (Tensor): The state x_t, (N, ...).
    """

    def __init__(self, x: Tensor):
        self.state: Tensor | None = x
        self.dropped = False
        self.x = self.f = self.change = self.step = None
        self.handed: Tensor | None = None
        self.handed_by: dict[Run, Tensor] = {}
        self.last: tuple[object, Tensor | None] = None, None

    def see_branch(self, f: Tensor, step: Tensor | None, scale: float,
                   dropped: bool) -> None:
        """Measure the branch, which may soon be overwritten.

        Args:
            f (Tensor): The branch f(x_t), (N, ...).
            step (Tensor, optional): The attention value. None is 1.
            scale (float): What both are multiplied by when they are added.
            dropped (bool): Whether stochastic depth comes on top, so that
                the sum has changed by something else.
        """
        self.dropped = dropped
        with hidden():
            self.f, self.change, self.step = measure_branch(f, step)
            if scale != 1:
                self.f, self.change = (
                    value * abs(scale) for value in (self.f, self.change))

    def see_sum(self, total: Tensor) -> None:
        """Measure the branch by what it has changed."""
        with hidden():
            self.x, self.change = norm_and_distance(self.state, total)
            self.f, self.step = self.change, torch.ones_like(self.change)

    def hand_on(self, run: Run | None, value: Tensor, key: object,
                same: bool) -> None:
        """Measure what a run makes of the sum.

        Args:
            run (Run, optional): The run that returns it; None where it is the
                state of the next step.
            value (Tensor): What it returns, as large as the state.
            key (object): Equal where this value was measured before.
            same (bool): Whether it is the sum itself.
        """
        if same and not self.dropped:
            distance = self.change
        elif key == self.last[0]:
            distance = self.last[1]
        else:
            with hidden():
                self.x, distance = norm_and_distance(self.state, value)
            self.last = key, distance
        if run is None:
            self.handed = distance
        else:
            self.handed_by[run] = distance

    def settle(self) -> None:
        """Let the state go."""
        if self.state is not None and self.x is None:
            with hidden():
                self.x = norm(self.state)
        self.state = None
        self.last = None, None

    def of_block(self, block: Run | None) -> StepNorms:
        """Norms of the step of a block that ran once."""
        returned = self.handed_by.get(block, self.handed)
        return StepNorms(
            self.x, self.f, self.change,
            self.change if returned is None else returned, self.step)
