"""Operations that a mode sees: which states they carry on, which are steps."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn as nn
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mmstepnet.torch_version import is_backward

from .operations import SAME, Operation, describe_operation
from .sums import Product, Run, Sum
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
PROJECTS = (
    'both operands were computed from the state, as where the '
    'identity is projected, or by hyper-connections'
)
"""The first block of a ResNet's stage."""


@dataclass
class Seen:
    """What is known of an operation before it runs.

    Attributes:
        tags (list[Tag]): Of the tensors that it is given.
        multiple (tuple, optional): What it copies or multiplies, and the
            number or weights.
        factor (Factor, optional): How its result is made, if it is a product.
        sum (Sum, optional): The step that it is.
        origin (tuple, optional): Of what its result is made, and how.
    """

    tags: list[Tag]
    multiple: tuple[Tensor, Any] | None = None
    factor: Factor | None = None
    sum: Sum | None = None
    origin: tuple[str, TensorId] | None = None


class Additions(TorchDispatchMode):
    """Passes on which states a tensor was computed from, and knows steps.

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
        self.stack: list[Run] = []
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
        seen = self._look(operation, args, kwargs)
        out = func(*args, **kwargs)
        self._conclude(operation, seen, args, kwargs, out)
        return out

    def _look(self, operation: Operation, args: tuple, kwargs: dict) -> Seen:
        """See what an operation is going to do, before it writes."""
        seen = Seen(self.tags.get_all((*args, *kwargs.values())))
        if seen.tags:
            look = LOOKS.get(operation.name)
            if look is not None:
                look(self, operation, args, kwargs, seen)
            if operation.writes:
                self._save_states(tensors(args[:1], kwargs))  # or out=
        return seen

    def _conclude(
        self,
        operation: Operation,
        seen: Seen,
        args: tuple,
        kwargs: dict,
        out: Any,
    ) -> None:
        """Say of the result what was seen, now that it is there."""
        if (
            self._trace is not None
            and seen.origin is not None
            and is_real(out)
        ):
            self.tags.make(out)  # while it lives no other has its memory
            self._trace.derive(*seen.origin, out, operation.writes)
        conclude = CONCLUSIONS.get(operation.name)
        if conclude is not None:
            conclude(self, args, out)
        if not operation.blank and (
            seen.tags
            or operation.random
            or not any(
                is_real(t) and self._is_foreign(t)
                for t in tensors(*args, kwargs)
            )
        ):
            self._pass_on(operation, seen.tags, out)
            if seen.multiple and not operation.writes:
                self._follow(operation, *seen.multiple, out)
        if seen.factor is not None:
            self.tags.make(out).factor = seen.factor
        if seen.sum is not None:
            self._make_state(seen.sum, out)

    def _see_rows(self, args: tuple, out: Any) -> None:
        """A convolution over (N, C, L) tells its maps from tokens."""
        if is_real(out) and out.dim() == 3:
            self._rows.add(tuple(out.shape))

    def _see_embedding(self, args: tuple, out: Any) -> None:
        """What an embedding returns for the model's integers is text."""
        if self._trace is not None and self._trace.is_text(args[1]):
            self._trace.look_up(self.tags.mark(out))

    def _pass_on(
        self, operation: Operation, tags: list[Tag], out: Any
    ) -> None:
        """Say of the result which states it was computed from."""
        plain = mixed = 0
        random = operation.random
        for tag in tags:
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

    def _see_copy(
        self, operation: Operation, args: tuple, kwargs: dict, seen: Seen
    ) -> None:
        """A copy is a multiple by 1."""
        if self.tags.get_all(args[:1]):
            seen.multiple = args[0], 1
            seen.factor = self._carry(operation, *seen.multiple)

    def _see_product(
        self, operation: Operation, args: tuple, kwargs: dict, seen: Seen
    ) -> None:
        """A product is one with a gate, or a multiple."""
        a, b = args[:2]
        seen.factor = self._factor(operation, a, b)
        self._see_multiple(operation, [(a, b), (b, a)], seen)

    def _see_quotient(
        self, operation: Operation, args: tuple, kwargs: dict, seen: Seen
    ) -> None:
        """A quotient is a multiple."""
        a, b = args[:2]
        self._see_multiple(operation, [(a, b)], seen)

    def _see_multiple(
        self, operation: Operation, pairs: list[tuple[Any, Any]], seen: Seen
    ) -> None:
        """See what is multiplied, and the number or weights."""
        for x, k in pairs:
            if self.tags.get_all([x]) and not any(
                tag.known or tag.random for tag in self.tags.get_all([k])
            ):
                seen.multiple = x, k
                self._note_origin('product', x, seen)
                if operation.writes:
                    self.tags.make(x).scaled = True
                if seen.factor is None:
                    seen.factor = self._carry(operation, x, k)
                return

    def _see_relu(
        self, operation: Operation, args: tuple, kwargs: dict, seen: Seen
    ) -> None:
        self._note_origin('relu', args[0], seen)

    def _note_origin(self, kind: str, x: Tensor, seen: Seen) -> None:
        """Keep of what the result is made, before somebody writes to it."""
        if self._trace is not None:
            seen.origin = kind, identify(x)

    def _follow(
        self, operation: Operation, x: Tensor, k: Any, out: Any
    ) -> None:
        """Say of a copy, or of a multiple, which state it is."""
        if operation.name in ('mul', 'div') or self.tags.make(x).scaled:
            self.tags.make(out).scaled = True
        if isinstance(k, Tensor) and k.numel() > 1:
            return
        if operation.name == 'div':
            self.tags.make(out).divided = x
        number = self.tags.number(x)
        if number and is_real(out):
            self.tags.mark(out, number)

    def _factor(
        self, operation: Operation, a: Tensor, b: Tensor
    ) -> Factor | None:
        """How a product is made, if one of its factors is a gate."""
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

    def _carry(self, operation: Operation, x: Tensor, k: Any) -> Factor | None:
        """How a copy or a multiple of a product is made."""
        factor = self.tags.make(x).factor
        if factor is None or factor.of.shape != x.shape:
            return None
        k = 1 / k if operation.name == 'div' else k
        return replace(factor, scales=(*factor.scales, k))

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

    def _see_sum(
        self, operation: Operation, args: tuple, kwargs: dict, seen: Seen
    ) -> None:
        """Find out, before it is executed, whether an operation is a step."""
        if not self.stack:
            return
        if self.stack[-1].is_closed:
            self._note_origin('step', args[0], seen)
            return
        pairs = list(_operands(operation, args))
        if not pairs:
            return
        owner = next((r for r in reversed(self.stack) if r.learns), None)
        reasons = [self._refuse(x, f, owner) for x, f in pairs]
        if owner is not None and None in reasons:
            x, f = pairs[reasons.index(None)]
            if x is args[0] or kwargs.get('alpha', 1) == 1:
                self._note_origin('step', x, seen)
            if self._trace is not None:
                self._trace.see_sum(x, f, None)
            seen.sum = self._begin(owner, x, f, args, kwargs)
            return
        why = next((r for r in reasons if r != NO_STATE), NO_STATE)
        self.missed[(owner or self.stack[-1]).name, why] += 1
        if self._trace is not None:
            self._trace.see_sum(*pairs[0], why)
        if owner is not None:
            seen.sum = self._see_projection(owner, *args[:2])

    def _refuse(self, x: Tensor, f: Tensor, owner: Run | None) -> str | None:
        """Why the sum of two tensors is no step from the first.

        The first rule that does not hold says so: x is a state; f was
        computed from it; a contraction lies between; the module that adds, or
        for which it is added, has weights.
        """
        number, tag = self._state(x, owner), self.tags.get(f)
        if not number or number == self.tags.number(f):
            return NO_STATE
        base = self._base(number, tag, owner)
        if tag is None or not tag.known >> base & 1:
            return UNRELATED
        if not tag.mixed >> base & 1:
            return NO_CONTRACTION
        return NO_WEIGHTS if owner is None else None

    def _state(self, x: Tensor, owner: Run | None) -> int:
        """The state that an operand is, or is a slice of; 0 if it is none.

        It may be a slice of what the module that adds was given itself, as in
        DPN and CrossViT; slices of the branch are none, as in Res2Net.
        """
        given = owner.given if owner else 0
        return self.tags.number(x) or next(
            (n for n in self.tags.around(x) if given >> n & 1), 0
        )

    def _base(self, number: int, tag: Tag | None, owner: Run | None) -> int:
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

    def _begin(
        self, owner: Run, x: Tensor, f: Tensor, args: tuple, kwargs: dict
    ) -> Sum | None:
        """Take down a step, and measure what is about to be overwritten."""
        first, alpha = args[0] is x, kwargs.get('alpha', 1)
        tag = self.tags.make(f)
        is_constant = alpha != 1 or tag.scaled
        number = self._state(x, owner)
        base = self._base(number, tag, owner)
        if base != number:
            found = self._step_of[number]
            found.branches += 1
            found.of_branch |= tag.known
            found.is_constant |= is_constant
            return found
        self._take_over(x, number)
        found = self._new_sum(owner, number, x, f)
        if found.left_out:
            return None
        found.is_constant = is_constant
        if self._trace is not None:
            self._trace.add(found, x, f, self.tags.make(x).plain)
        f, gate, dropped, scales = self._factors(f, base)
        if gate is not None:
            found.gate = tuple(gate.shape)
            found.product = self._products.get(Tags.view(gate))
        if self.norms is not None:
            found.norms = self.norms(x if first or alpha == 1 else x * alpha)
            found.norms.see_branch(
                f, gate, alpha if first else 1, dropped, scales
            )
        return found

    def _factors(
        self, f: Tensor, base: int
    ) -> tuple[Tensor, Tensor | None, bool, tuple]:
        """Branch, attention value, if stochastic depth was there, scales."""
        gate, dropped, scales = None, False, ()
        while (factor := self.tags.make(f).factor) is not None:
            if scales and factor.of.shape != f.shape:
                break
            if factor.gate is not None:
                if gate is not None or not factor.known >> base & 1:
                    break
                gate = factor.gate
            else:
                dropped = True
            f, scales = factor.of, scales + factor.scales
        return f, gate, dropped, scales

    def _new_sum(
        self,
        owner: Run,
        state: int,
        x: Tensor,
        f: Tensor,
        part: str | None = None,
    ) -> Sum:
        of_state, of_branch = self.tags.make(x).known, self.tags.make(f).known
        found = Sum(
            owner,
            tuple(x.shape),
            state,
            of_state=of_state,
            of_branch=of_branch,
            part=part,
        )
        if x.dim() < 2 or not x.numel():
            found.left_out = (
                f'a state {tuple(x.shape)}: samples, (N, ...), '
                'one or more, were expected'
            )
        self.sums.append(found)
        self._pending.append(found)
        return found

    def _make_state(self, found: Sum, out: Tensor) -> None:
        """Make the sum a state."""
        norms = found.norms
        if norms is not None and found.number:  # another branch
            norms.see_sum(out)
        found.number = self.tags.mark(out)
        found.values = *self.tags.view(out), self.tags.make(out).version
        if found not in found.owner.sums:
            found.owner.sums.append(found)
        if found.state:
            self._step_of[found.number] = found

    def _take_over(self, x: Tensor, number: int) -> None:
        """A state that a sum became: that is what its step handed on."""
        plain = self.tags.make(x).plain
        for found in self._pending[:]:
            if plain >> found.number & 1:
                self._hand_on(found, None, x)
                self._settle(found)

    def _see_projection(self, owner: Run, a: Tensor, b: Tensor) -> Sum | None:
        """Take down a sum of two tensors that come from one state."""
        of_a, of_b = self.tags.make(a), self.tags.make(b)
        both = of_a.known & of_b.known
        if a.dim() < 2 or not both & owner.given & (of_a.mixed | of_b.mixed):
            return None
        found = Sum(
            owner,
            tuple(a.shape),
            of_state=both,
            of_branch=of_a.known | of_b.known,
            left_out=PROJECTS,
        )
        state = both.bit_length() - 1
        for t in (a, b):
            gate = self._factors(t, state)[1]
            if gate is not None:
                found.product = self._products.get(Tags.view(gate))
            elif self.tags.make(t).scaled:
                found.is_constant = True
        self.sums.append(found)
        return found

    def _hand_on(self, found: Sum, run: Run | None, t: Tensor) -> bool:
        """See whether a tensor is what a run, if any, has made of a sum."""
        tag = self.tags.make(t)
        is_sum = (*self.tags.view(t), tag.version) == found.values
        if not tag.plain >> found.number & 1 or not (
            is_sum or tuple(t.shape) == found.shape
        ):
            return False
        if found.norms is not None:
            found.norms.hand_on(run, t, is_sum)
        return True

    def _settle(self, found: Sum) -> None:
        self._pending.remove(found)
        if found.norms is not None:
            found.norms.settle()

    def _save_states(self, written: list[Tensor]) -> None:
        """Copy what is still needed and about to be overwritten."""
        memories = {self.tags.view(t)[0] for t in written if is_real(t)}
        for norms in (found.norms for found in self._pending if found.norms):
            if self.tags.view(norms.state)[0] in memories:
                norms.state = norms.state.clone()


ADDITIONS = {'add': ((0, 1), (1, 0)), 'sub': ((0, 1),)}
"""Places of the state and of the branch among the arguments."""


def _operands(
    operation: Operation, args: tuple
) -> Iterator[tuple[Tensor, Tensor]]:
    """What may be the state, and the branch that is added to it."""
    for i, j in ADDITIONS[operation.name]:
        if (
            max(i, j) < len(args)
            and is_real(args[i])
            and is_real(args[j])
            and args[i].shape == args[j].shape
        ):
            yield args[i], args[j]


LOOKS: dict[str, Callable] = {
    **dict.fromkeys(SAME, Additions._see_copy),
    'add': Additions._see_sum,
    'sub': Additions._see_sum,
    'mul': Additions._see_product,
    'div': Additions._see_quotient,
    'relu': Additions._see_relu,
}
"""What is to be seen of operations before they run, by their names. Of all
others their tags alone are passed on."""

CONCLUSIONS: dict[str, Callable] = {
    'convolution': Additions._see_rows,
    'embedding': Additions._see_embedding,
}
"""What their results show."""

KEEPS_FACTORS = {*SAME, *ADDITIONS, 'mul', 'div'}
"""Operations behind which a tensor is still the product that it was."""
