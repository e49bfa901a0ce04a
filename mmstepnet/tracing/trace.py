"""Records of the tensors of a pass, to be asked afterwards."""

from collections import Counter, defaultdict
from typing import Any, NamedTuple

import torch.nn as nn
from torch import Tensor

from .sums import Sum
from .tags import Tags, is_real, tensors


class TensorId(NamedTuple):
    """Equal for one tensor, as long as nobody writes to it.

    While a trace lives, no other tensor gets the same memory.
    """

    memory: int
    offset: int
    size: int
    version: int
    """How often the memory was written; inference mode does not count."""
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def values(self) -> tuple:
        """The part that all views of the same values share."""
        return self[:4]


def identify(t: Tensor, writes: int = 0) -> TensorId:
    """Identity of a tensor, which is about to be written so many times."""
    version = 0 if t.is_inference() else t._version + writes
    memory, offset, size = Tags.view(t)
    return TensorId(memory, offset, size, version, tuple(t.shape), t.stride())


class Event(NamedTuple):
    """A module was given a tensor, or returned it."""

    time: int
    module: nn.Module
    name: str
    returned: bool
    key: int | str
    """Place among the arguments or results, or name of the argument."""
    call: int
    """Which of the module's calls in the pass, from 0."""


class Origin(NamedTuple):
    """A tensor was made of another one alone."""

    kind: str
    """``'step'``: by adding a branch; ``'relu'``; ``'product'``: with a
    number or weights."""
    operand: TensorId
    result: TensorId


class Passage(NamedTuple):
    """The first argument and the first result of one call of a module."""

    name: str
    given: TensorId | None
    returned: TensorId | None
    size: int
    """Elements of the tuple that it returned; 0 is no tuple."""
    is_alone: bool
    """Whether all further elements are None."""


class Addition(NamedTuple):
    """A step, when it was added."""

    time: int
    state: TensorId
    branch: TensorId
    is_text: bool
    """Whether the state was looked up in an embedding by integers that the
    model was given, and perhaps projected."""


class Line(NamedTuple):
    """One line of a trace that is printed."""

    depth: int
    text: str
    given: list[TensorId]
    returned: list[TensorId]
    note: str = ''


class Trace:
    """Events of one pass, in their order. It can be printed.

    Attributes:
        events (dict): Who was given, or returned, each tensor.
        origins (dict): What each tensor was made of, by its values.
        passages (list[Passage]): Calls of modules that have ended.
        additions (dict): When and of what each step was added.
        calls (Counter): How often each module ran.
        shapes (dict): Shapes of the tensors that each module was given first,
            also in lists, tuples and dicts, by its name.
    """

    def __init__(self) -> None:
        self.events: dict[TensorId, list[Event]] = defaultdict(list)
        self.origins: dict[tuple, Origin] = {}
        self.passages: list[Passage] = []
        self.additions: dict[Sum, Addition] = {}
        self.calls: Counter[nn.Module] = Counter()
        self.shapes: dict[str, list[tuple[int, ...]]] = {}
        self._time = 0
        self._given: dict[nn.Module, TensorId | None] = {}
        # Sorted shapes of integers given: a network may turn them.
        self._texts: set[tuple[int, ...]] = set()
        self._looked_up = 0  # states that were looked up by these, as bits
        self._lines: list[Line] = []
        self._open: list[tuple[nn.Module, int]] = []  # modules, their lines

    def __str__(self) -> str:
        """Modules and sums, indented as they ran.

        ``$1 2x3`` is a tensor that is met first, ``$1`` the same one, and
        ``$1 as 3x2`` another view of its values, to which no step comes.
        """
        first: dict[tuple, TensorId] = {}

        def name(tensor: TensorId) -> str:
            shape = 'x'.join(map(str, tensor.shape))
            if tensor.values not in first:
                first[tensor.values] = tensor
                return f'${len(first)} {shape}'
            number = list(first).index(tensor.values) + 1
            is_same = tensor == first[tensor.values]
            return f'${number}' if is_same else f'${number} as {shape}'

        lines = []
        for depth, text, given, returned, note in self._lines:
            line = f'{"  " * depth}{text}'
            if given:
                line += f'({", ".join(map(name, given))})'
            if returned:
                line += f' -> {", ".join(map(name, returned))}'
            lines.append(f'{line}{note}')
        return '\n'.join(lines)

    def enter(
        self,
        module: nn.Module,
        name: str,
        args: tuple,
        kwargs: dict,
        is_model: bool,
    ) -> None:
        """A module is called."""
        given = [*enumerate(args), *kwargs.items()]
        if is_model:
            self._texts = {
                tuple(sorted(t.shape))
                for t in tensors(args, kwargs)
                if t.dim() > 1 and not t.is_floating_point()
            }
        self.calls[module] += 1
        self.shapes.setdefault(
            name, [tuple(t.shape) for t in tensors(args, kwargs)]
        )
        first: Any = given[0][1] if given else None
        self._given[module] = identify(first) if is_real(first) else None
        for key, t in given:
            self._see(module, name, False, key, t)
        self._open.append((module, len(self._lines)))
        text = f'{name} {type(module).__name__}'.strip()
        ids = [identify(t) for _, t in given if is_real(t)]
        self._lines.append(Line(len(self._open) - 1, text, ids, []))

    def leave(self, module: nn.Module, name: str, out: Any) -> None:
        """A module returns, or has raised."""
        outs = out if type(out) in (tuple, list) else [out]
        for key, t in enumerate(outs):
            self._see(module, name, True, key, t)
        ids = [identify(t) for t in outs if is_real(t)]
        self._print_end(module, ids)
        size = len(out) if type(out) is tuple else 0
        first: Any = out[0] if size else out
        self.passages.append(
            Passage(
                name,
                self._given.pop(module, None),
                identify(first) if is_real(first) else None,
                size,
                not size or all(t is None for t in out[1:]),
            )
        )

    def _print_end(self, module: nn.Module, returned: list[TensorId]) -> None:
        """In the line where it began if nothing ran in it, else below."""
        opened, start = self._open.pop()
        while opened is not module:  # left behind by what raised
            opened, start = self._open.pop()
        if start == len(self._lines) - 1:
            self._lines[start] = self._lines[start]._replace(returned=returned)
        else:
            depth = len(self._open) + 1
            self._lines.append(Line(depth, 'return', [], returned))

    def see_sum(self, x: Tensor, f: Tensor, why: str | None) -> None:
        """Two tensors are added: a step, or why it is none."""
        note = ': a step' if why is None else f': no step, {why}'
        ids = [identify(t) for t in (x, f)]
        self._lines.append(Line(len(self._open), 'add', ids, [], note))

    def _see(
        self,
        module: nn.Module,
        name: str,
        returned: bool,
        key: int | str,
        t: Any,
    ) -> None:
        if is_real(t):
            self._time += 1
            call = self.calls[module] - 1
            self.events[identify(t)].append(
                Event(self._time, module, name, returned, key, call)
            )

    def derive(
        self, kind: str, operand: TensorId, out: Tensor, writes: int
    ) -> None:
        """A tensor was made of another one, perhaps by writing to it."""
        # What writes counts it as a version when this has returned.
        result = identify(out, writes)
        if result != operand:  # inference mode counts no versions
            self.origins[result.values] = Origin(kind, operand, result)

    def is_text(self, shape: tuple[int, ...]) -> bool:
        """Whether it is the shape of integers that the model was given."""
        return tuple(sorted(shape)) in self._texts

    def look_up(self, state: int) -> None:
        """A state was looked up by such."""
        self._looked_up |= 1 << state

    def add(
        self, candidate: Sum, x: Tensor, f: Tensor, plain: int, mixed: int
    ) -> None:
        """A step is about to be added.

        Args:
            candidate (Sum): The step.
            x (Tensor): Its state.
            f (Tensor): Its branch.
            plain (int): States that x was computed from, as bits.
            mixed (int): The same, by a layer: embeddings may be projected.
        """
        is_text = bool(plain & self._looked_up) or (
            bool(mixed & self._looked_up) and self.is_text(x.shape[:-1])
        )
        self.additions.setdefault(
            candidate, Addition(self._time, identify(x), identify(f), is_text)
        )

    def events_of(self, tensor: TensorId, until: int) -> list[Event]:
        """Who was given, or returned, a tensor up to a time."""
        return [e for e in self.events.get(tensor, ()) if e.time <= until]

    def multiples(self, tensor: TensorId) -> list[TensorId]:
        """A tensor, and what it is a product of with numbers and weights."""
        made_of = [tensor]
        while True:
            origin = self.origins.get(made_of[-1].values)
            if (
                origin is None
                or origin.kind != 'product'
                or origin.result != made_of[-1]
            ):
                return made_of
            made_of.append(origin.operand)

    def kinds_between(
        self, state: TensorId, result: TensorId
    ) -> list[str] | None:
        """Operations from one tensor to another, the last first, if any."""
        kinds = []
        end = result.values
        while end != state.values:
            origin = self.origins.get(end)
            if origin is None:
                return None
            kinds.append(origin.kind)
            end = origin.operand.values
        return kinds
