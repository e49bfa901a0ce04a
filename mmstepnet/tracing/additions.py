"""Operations that a mode sees: which states they carry on, which are steps."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn as nn
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mmstepnet.torch_version import is_backward

from .operations import (
    PRODUCTS,
    QUOTIENTS,
    SAME,
    Operation,
    describe_operation,
)
from .sums import Call, Product, Sum
from .tags import Factor, Tag, Tags, channels_of, gate_axis, is_real, tensors
from .trace import TensorId, Trace, identify

NO_STATE = 'neither operand is a state that a module was given'
"""Res2Net adds slices of its branch to one another."""
UNRELATED = 'neither operand was computed from the other'
"""A ViT adds positions."""
NO_CONTRACTION = 'no contraction lies between the operands'
"""GRN of ConvNeXt V2 adds a multiple of its state."""
NO_WEIGHTS = 'the module that adds has no weights'
"""A network of functions alone has no block."""
PROJECTS = 'projects its identity'
"""Both operands were computed from the state: the first block of a ResNet's
stage. Hyper-connections look alike."""


class Multiple(NamedTuple):
    """A tensor times a number or weights; a copy is a multiple by 1."""

    of: Tensor
    by: Any


class Branch(NamedTuple):
    """The factors of a tensor that is added to a state."""

    f: Tensor
    gate: Tensor | None
    """The attention value Δt."""
    is_dropped: bool
    """Whether stochastic depth was there."""
    scales: tuple
    """Numbers and weights."""


@dataclass
class Execution:
    """One run of an operation, and what is known of it before it writes.

    Attributes:
        operation (Operation): What runs.
        args (tuple): What it is given.
        kwargs (dict): The same by name.
        tags (list[Tag]): Of the tensors that it is given.
        multiple (Multiple, optional): What its result is, if it is one.
        factor (Factor, optional): How its result is made, if it is a product.
        sum (Sum, optional): The step that it is.
        origin (tuple, optional): How its result is made of one tensor, and of
            which: see :class:`~.trace.Origin`.
    """

    operation: Operation
    args: tuple
    kwargs: dict
    tags: list[Tag]
    multiple: Multiple | None = None
    factor: Factor | None = None
    sum: Sum | None = None
    origin: tuple[str, TensorId] | None = None


class Additions(TorchDispatchMode):
    """Propagates which states a tensor was computed from, and knows steps.

    Attributes:
        sums (list[Sum]): Steps of the last pass, and what might be one.
        missed (Counter): Sums of two tensors that are none, by the module's
            name and the reason.
        gates (dict[Product, Tensor]): Gates of the last pass, by the products
            with them.
    """

    # A mode that does not say so may not see them.
    supports_higher_order_operators = True

    names: dict[nn.Module, str]
    norms: Callable[[Tensor], Any] | None
    constants: Mapping[Product, Tensor]
    _trace: Trace | None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled meanwhile: no need to tell Dynamo each time."""
        return False

    def forget(self) -> None:
        """Forget the last pass."""
        self.tags = Tags()
        self.stack: list[Call] = []
        self.sums: list[Sum] = []
        self.missed: Counter = Counter()
        self._weights: set[int] = set()  # their memory
        self._rows: set[tuple] = set()  # shapes (N, C, L) of a Conv1d
        self._pending: list[Sum] = []
        self._step_of: dict[int, Sum] = {}  # by the sum's number
        self.gates: dict[Product, Tensor] = {}
        self._products: dict[tuple, Product] = {}  # by the gate's values
        self._counts: Counter[str] = Counter()  # of products by a module

    def __torch_dispatch__(
        self,
        func: Any,
        types: tuple,
        args: tuple = (),
        kwargs: dict | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if torch.is_inference_mode_enabled() and isinstance(
            func, torch._ops.OpOverload
        ):
            with self:  # elsewhere autograd takes it apart before
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        operation = describe_operation(func)
        if operation.views or is_backward():
            return func(*args, **kwargs)
        execution = self._inspect(operation, args, kwargs)
        out = func(*args, **kwargs)
        self._record(execution, out)
        return out

    def _inspect(
        self, operation: Operation, args: tuple, kwargs: dict
    ) -> Execution:
        """See what an operation is going to do, before it writes."""
        tags = self.tags.get_all((*args, *kwargs.values()))
        execution = Execution(operation, args, kwargs, tags)
        if tags:
            if operation.name in BEFORE:
                BEFORE[operation.name](self, execution)
            if operation.writes:
                self._save_states(tensors(args[:1], kwargs))  # or out=
        return execution

    def _record(self, execution: Execution, out: Any) -> None:
        """Say of the result what is known, now that it is there."""
        operation = execution.operation
        args = execution.args
        if (
            self._trace is not None
            and execution.origin is not None
            and is_real(out)
        ):
            self.tags.make(out)  # while it lives no other has its memory
            self._trace.derive(*execution.origin, out, operation.writes)
        if operation.name in AFTER:
            AFTER[operation.name](self, args, out)
        if not operation.blank and (
            execution.tags
            or operation.random
            or not any(
                is_real(t) and self._is_foreign(t)
                for t in tensors(*args, execution.kwargs)
            )
        ):
            self._propagate_tags(execution, out)
            if execution.multiple and not operation.writes:
                self._propagate_state(execution, out)
        if execution.factor is not None:
            self.tags.make(out).factor = execution.factor
        if execution.sum is not None:
            self._make_state(execution.sum, out)

    def _after_convolution(self, args: tuple, out: Any) -> None:
        """A convolution over (N, C, L) tells its maps from tokens."""
        if is_real(out) and out.dim() == 3:
            self._rows.add(tuple(out.shape))

    def _after_embedding(self, args: tuple, out: Any) -> None:
        """An embedding makes a text of integers that the model was given."""
        if self._trace is not None and self._trace.is_text(args[1].shape):
            self._trace.look_up(self.tags.mark(out))

    def _propagate_tags(self, execution: Execution, out: Any) -> None:
        """Say of the result which states it was computed from."""
        operation = execution.operation
        plain = mixed = 0
        random = operation.random
        for tag in execution.tags:
            if operation.carries:
                plain |= tag.plain
                mixed |= tag.mixed
                random |= tag.random
            if operation.name not in KEEPS_FACTORS:
                tag.factor = None
        if operation.mixes:
            plain, mixed = 0, plain | mixed
        for t in filter(is_real, tensors(out)):
            tag = self.tags.make(t)
            tag.plain |= plain
            tag.mixed |= mixed
            tag.random |= random
            if operation.writes:
                tag.version += 1
                tag.factor = None

    def _propagate_state(self, execution: Execution, out: Any) -> None:
        """Say of a copy, or of a multiple, which state it is."""
        assert execution.multiple is not None
        x, k = execution.multiple
        name = execution.operation.name
        if name in PRODUCTS | QUOTIENTS or self.tags.make(x).scaled:
            self.tags.make(out).scaled = True
        if isinstance(k, Tensor) and k.numel() > 1:
            return
        if name in QUOTIENTS:
            self.tags.make(out).divided = x
        number = self.tags.number(x)
        if number and is_real(out):
            self.tags.mark(out, number)

    def _before_copy(self, execution: Execution) -> None:
        """A copy is a multiple by 1."""
        x = execution.args[0]
        if self.tags.get_all([x]):
            execution.multiple = Multiple(x, 1)
            execution.factor = self._scaled_factor(execution)

    def _before_product(self, execution: Execution) -> None:
        """A product is one with a gate, or a multiple."""
        a, b = execution.args[:2]
        execution.factor = self._factor(execution.operation, a, b)
        self._inspect_multiple(execution, Multiple(a, b), Multiple(b, a))

    def _before_quotient(self, execution: Execution) -> None:
        """A quotient is a multiple."""
        self._inspect_multiple(execution, Multiple(*execution.args[:2]))

    def _inspect_multiple(
        self, execution: Execution, *multiples: Multiple
    ) -> None:
        """See what is multiplied, and that it is by a number or weights."""
        for multiple in multiples:
            x, k = multiple
            if self.tags.get_all([x]) and not any(
                tag.known or tag.random for tag in self.tags.get_all([k])
            ):
                execution.multiple = multiple
                self._note_origin('product', x, execution)
                if execution.operation.writes:
                    self.tags.make(x).scaled = True
                if execution.factor is None:
                    execution.factor = self._scaled_factor(execution)
                return

    def _scaled_factor(self, execution: Execution) -> Factor | None:
        """The factors of a copy, or of a multiple, of a product."""
        assert execution.multiple is not None
        x, k = execution.multiple
        factor = self.tags.make(x).factor
        if factor is None or factor.of.shape != x.shape:
            return None
        if execution.operation.name in QUOTIENTS:
            k = 1 / k
        return replace(factor, scales=(*factor.scales, k))

    def _before_relu(self, execution: Execution) -> None:
        self._note_origin('relu', execution.args[0], execution)

    def _note_origin(self, kind: str, x: Tensor, execution: Execution) -> None:
        """Keep of what the result is made, before somebody writes to it."""
        if self._trace is not None:
            execution.origin = kind, identify(x)

    def _factor(
        self, operation: Operation, a: Tensor, b: Tensor
    ) -> Factor | None:
        """The factors of a product, if one of them is a gate."""
        if not (is_real(a) and is_real(b)):
            return None
        for f, gate in ((a, b), (b, a)):
            axis = gate_axis(gate, f, tuple(f.shape) in self._rows)
            tag = self.tags.get(gate)
            if axis is None or tag is None:
                continue
            if axis == 0 and tag.random and not tag.known:
                divided = self.tags.make(f).divided
                of = f if divided is None else divided
                gate = None
            elif axis and (
                gate.numel() < f.numel()
                or 0 in gate.stride()
                or tag.mixed >> self.tags.number(f) & 1
            ):
                of = f  # the last where f has one place, as the gate has
            else:
                continue
            if operation.writes and of is a:
                of = of.clone()
                self.tags.make(of).factor = self.tags.make(a).factor
            if gate is not None:
                self._see_gate(gate, f)
            return Factor(of, gate, tag.known)
        return None

    def _see_gate(self, gate: Tensor, f: Tensor) -> None:
        """Count a product with a gate; put a constant in the gate's place."""
        other = self.tags.get(f)
        # Of one image, weights that a module returns look like a gate.
        if other is None or not self.tags.make(gate).known & other.known:
            return
        name = self.stack[-1].name
        product = name, self._counts[name]
        self._counts[name] += 1
        self._products[Tags.view(gate)] = product
        self.gates[product] = gate
        if product in self.constants:
            values = channels_of(gate)
            values.copy_(self.constants[product].to(values))

    def _is_foreign(self, t: Tensor) -> bool:
        """Whether something that no mode sees computed a tensor.

        An extension that writes in a buffer does, or a detour by numpy.
        """
        if self.tags.get(t) is not None:
            return False
        if not self._weights:  # FSDP and pruning keep them as attributes
            self._weights = {
                t.untyped_storage()._cdata
                for m in self.names
                for t in tensors(vars(m))
                if is_real(t)
            }
        return t.untyped_storage()._cdata not in self._weights

    def _before_sum(self, execution: Execution) -> None:
        """Find out whether an addition is a step."""
        args = execution.args
        if not self.stack:
            return
        if self.stack[-1].is_closed:
            self._note_origin('step', args[0], execution)
            return
        pairs = list(_operands(execution))
        if not pairs:
            return
        owner = next((r for r in reversed(self.stack) if r.learns), None)
        reasons = [self._refuse(x, f, owner) for x, f in pairs]
        if owner is not None and None in reasons:
            x, f = pairs[reasons.index(None)]
            if x is args[0] or execution.kwargs.get('alpha', 1) == 1:
                self._note_origin('step', x, execution)
            if self._trace is not None:
                self._trace.see_sum(x, f, None)
            execution.sum = self._record_step(owner, x, f, execution)
            return
        why = next((r for r in reasons if r != NO_STATE), NO_STATE)
        self.missed[(owner or self.stack[-1]).name, why] += 1
        if self._trace is not None:
            self._trace.see_sum(*pairs[0], why)
        if owner is not None:
            execution.sum = self._record_projection(owner, *args[:2])

    def _refuse(self, x: Tensor, f: Tensor, owner: Call | None) -> str | None:
        """Why the sum of two tensors is no step from the first.

        The first rule that does not hold says so: x is a state; f was
        computed from it; a contraction lies between; the module that adds, or
        for which it is added, has weights.
        """
        number = self._state(x, owner)
        tag = self.tags.get(f)
        if not number or number == self.tags.number(f):
            return NO_STATE
        base = self._base(number, tag, owner)
        if tag is None or not tag.known >> base & 1:
            return UNRELATED
        if not tag.mixed >> base & 1:
            return NO_CONTRACTION
        return NO_WEIGHTS if owner is None else None

    def _state(self, x: Tensor, owner: Call | None) -> int:
        """The state that an operand is, or is a slice of; 0 if it is none.

        It may be a slice of what the module that adds was given itself, as in
        DPN and CrossViT; slices of the branch are none, as in Res2Net.
        """
        given = owner.given if owner else 0
        return self.tags.number(x) or next(
            (n for n in self.tags.states_around(x) if given >> n & 1), 0
        )

    def _base(self, number: int, tag: Tag | None, owner: Call | None) -> int:
        """The state that a branch began from, where it joins a sum.

        GPT-NeoX adds two branches to one state.
        """
        while (
            tag is not None
            and not tag.known >> number & 1
            and (step := self._step_of.get(number))
            and step.owner is owner
        ):
            number = step.state
        return number

    def _record_step(
        self, owner: Call, x: Tensor, f: Tensor, execution: Execution
    ) -> Sum | None:
        """Take down a step, and measure what is about to be overwritten."""
        alpha = execution.kwargs.get('alpha', 1)  # of the second operand
        is_first = execution.args[0] is x
        tag = self.tags.make(f)
        is_constant = alpha != 1 or tag.scaled
        number = self._state(x, owner)
        base = self._base(number, tag, owner)
        if base != number:
            candidate = self._step_of[number]
            candidate.branches += 1
            candidate.of_branch |= tag.known
            candidate.is_constant |= is_constant
            return candidate
        self._finish_at(x)
        candidate = self._new_sum(owner, number, x, f)
        if candidate.left_out:
            return None
        candidate.is_constant = is_constant
        if self._trace is not None:
            of_x = self.tags.make(x)
            self._trace.add(candidate, x, f, of_x.plain, of_x.mixed)
        branch = self._branch(f, base)
        if branch.gate is not None:
            candidate.gate = tuple(branch.gate.shape)
            candidate.product = self._products.get(Tags.view(branch.gate))
        if self.norms is not None:
            candidate.norms = self.norms(
                x if is_first or alpha == 1 else x * alpha
            )
            candidate.norms.see_branch(*branch, scale=alpha if is_first else 1)
        return candidate

    def _branch(self, f: Tensor, base: int) -> Branch:
        """Take what is added to a state apart into its factors."""
        gate = None
        dropped = False
        scales = ()
        while (factor := self.tags.make(f).factor) is not None:
            if scales and factor.of.shape != f.shape:
                break
            if factor.gate is not None:
                if gate is not None or not factor.known >> base & 1:
                    break
                gate = factor.gate
            else:
                dropped = True
            f = factor.of
            scales = scales + factor.scales
        return Branch(f, gate, dropped, scales)

    def _new_sum(
        self,
        owner: Call,
        state: int,
        x: Tensor,
        f: Tensor,
        part: str | None = None,
    ) -> Sum:
        of_state = self.tags.make(x).known
        of_branch = self.tags.make(f).known
        candidate = Sum(
            owner,
            tuple(x.shape),
            state,
            of_state=of_state,
            of_branch=of_branch,
            part=part,
        )
        if x.dim() < 2 or not x.numel():
            candidate.left_out = (
                f'a state {tuple(x.shape)}: samples, (N, ...), '
                'one or more, were expected'
            )
        self.sums.append(candidate)
        self._pending.append(candidate)
        return candidate

    def _make_state(self, candidate: Sum, out: Tensor) -> None:
        """Make the sum a state."""
        norms = candidate.norms
        if norms is not None and candidate.number:  # another branch
            norms.see_sum(out)
        candidate.number = self.tags.mark(out)
        candidate.values = *self.tags.view(out), self.tags.make(out).version
        if candidate not in candidate.owner.sums:
            candidate.owner.sums.append(candidate)
        if candidate.state:
            self._step_of[candidate.number] = candidate

    def _finish_at(self, x: Tensor) -> None:
        """The next step adds to what a sum became: its own step ends here."""
        plain = self.tags.make(x).plain
        for candidate in self._pending[:]:
            if plain >> candidate.number & 1:
                self._record_output(candidate, None, x)
                self._finish(candidate)

    def _record_projection(
        self, owner: Call, a: Tensor, b: Tensor
    ) -> Sum | None:
        """Take down a sum of two tensors that come from one state."""
        of_a = self.tags.make(a)
        of_b = self.tags.make(b)
        both = of_a.known & of_b.known
        if a.dim() < 2 or not both & owner.given & (of_a.mixed | of_b.mixed):
            return None
        candidate = Sum(
            owner,
            tuple(a.shape),
            of_state=both,
            of_branch=of_a.known | of_b.known,
            left_out=PROJECTS,
        )
        state = both.bit_length() - 1
        for t in (a, b):
            gate = self._branch(t, state).gate
            if gate is not None:
                candidate.product = self._products.get(Tags.view(gate))
            elif self.tags.make(t).scaled:
                candidate.is_constant = True
        self.sums.append(candidate)
        return candidate

    def _record_output(
        self, candidate: Sum, call: Call | None, t: Tensor
    ) -> bool:
        """Measure the output of a step, if a tensor is what a sum became.

        Args:
            candidate (Sum): The step.
            call (Call, optional): That of the module which returns it; None
                where it is the state of the next step.
            t (Tensor): What may be its output.

        Returns:
            bool: Whether it is.
        """
        tag = self.tags.make(t)
        is_sum = (*self.tags.view(t), tag.version) == candidate.values
        if not tag.plain >> candidate.number & 1 or not (
            is_sum or tuple(t.shape) == candidate.shape
        ):
            return False
        if candidate.norms is not None:
            candidate.norms.see_output(call, t, is_sum)
        return True

    def _finish(self, candidate: Sum) -> None:
        self._pending.remove(candidate)
        if candidate.norms is not None:
            candidate.norms.finish()

    def _save_states(self, written: list[Tensor]) -> None:
        """Copy what is still needed and about to be overwritten."""
        memories = {self.tags.view(t)[0] for t in written if is_real(t)}
        for norms in (
            candidate.norms for candidate in self._pending if candidate.norms
        ):
            if self.tags.view(norms.state)[0] in memories:
                norms.state = norms.state.clone()


ADDITIONS = {'add': ((0, 1), (1, 0)), 'sub': ((0, 1),)}
"""Places of the state and of the branch among the arguments."""


def _operands(execution: Execution) -> Iterator[tuple[Tensor, Tensor]]:
    """Pairs of a state and a branch, as the arguments may be."""
    args = execution.args
    for i, j in ADDITIONS[execution.operation.name]:
        if (
            max(i, j) < len(args)
            and is_real(args[i])
            and is_real(args[j])
            and args[i].shape == args[j].shape
        ):
            yield args[i], args[j]


BEFORE: dict[str, Callable] = {
    **dict.fromkeys(SAME, Additions._before_copy),
    'add': Additions._before_sum,
    'sub': Additions._before_sum,
    **dict.fromkeys(PRODUCTS, Additions._before_product),
    **dict.fromkeys(QUOTIENTS, Additions._before_quotient),
    'relu': Additions._before_relu,
}
"""Methods that inspect an operation before it runs, by its name. Of all other
operations the tags alone are propagated."""

AFTER: dict[str, Callable] = {
    'convolution': Additions._after_convolution,
    'embedding': Additions._after_embedding,
}
"""Methods that inspect results."""

KEEPS_FACTORS = {*SAME, *ADDITIONS, *PRODUCTS, *QUOTIENTS}
"""Operations that follow the factors of what they are given. Any other one
ends them: what it was given is no product any more."""
