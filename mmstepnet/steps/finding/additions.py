"""Sums of two tensors: which are steps, and from which state."""

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .operations import Operation
from .sums import Run, Sum
from .tags import Tag, is_real
from .tracer import Tracer

NO_STATE = 'neither operand is a state that a module was given'
UNRELATED = 'neither operand was computed from the other'
NO_CONTRACTION = 'no contraction lies between the operands'
NO_WEIGHTS = 'the module that adds has no weights'
PROJECTS = ('both operands were computed from the state, as where the '
            'identity is projected, or by hyper-connections')


class Additions(Tracer):
    """Takes down the sums that are residual steps, or might be taken for one.

    Attributes:
        sums (list[Sum]): Steps of the last pass, and what might be one.
        missed (Counter): Sums of two tensors that are none, by the module's
            name and the reason.
        refused (str, optional): Why the last pass cannot be measured. The
            model is not disturbed.
    """

    norms: Callable[[Tensor], Any] | None

    def forget(self) -> None:
        """Forget the last pass."""
        super().forget()
        self.sums: list[Sum] = []
        self.missed: Counter = Counter()
        self.refused: str | None = None
        self._pending: list[Sum] = []
        self._state_before: dict[int, int] = {}  # by the sum's number
        self._step_of: dict[int, Sum] = {}
        self._sums_of_operand: dict[int, list[Sum]] = defaultdict(list)

    def _see_operation(self, operation: Operation, args: tuple,
              kwargs: dict) -> Sum | None:
        """Find out, before it is executed, whether an operation is a step."""
        if not self.stack or self.stack[-1].reported_by_step:
            return None
        reason, owner = None, None
        for x, f in operation.operands(args):
            if reason is None:
                owner = next((r for r in reversed(self.stack) if r.learns),
                             None)
                if owner is not None:
                    owner.additions += 1
            why = self._refuse(operation, x, f, owner)
            if why is None and owner is not None:
                return self._begin(operation, owner, x, f, args, kwargs)
            if reason in (None, NO_STATE):
                reason = why or NO_STATE
        if reason is None:
            return None
        self.missed[(owner or self.stack[-1]).name, reason] += 1
        return owner and self._see_projection(owner, *args[:2])

    def _refuse(self, operation: Operation, x: Tensor, f: Tensor,
                owner: Run | None) -> str | None:
        """Why the sum of two tensors is no step from the first.

        The first rule that does not hold says so:

        - The first operand is a state. Res2Net adds slices of its branch to
          one another, which no module was given.
        - The second was computed from it. A ViT adds positions.
        - A contraction lies between. GRN of ConvNeXt V2 adds a multiple of
          its state.
        - The module that adds has weights, or only adds for its caller what
          it was given. A pooling that adds its input is a layer.
        """
        tags = self.tags
        number, tag = self._state(x, owner), tags.get(f)
        if not number or not any(
                run.states >> number & 1 for run in self.stack) or (
                number == tags.number(f) and not operation.multiplies):
            return NO_STATE
        base = self._base(number, tag)
        if tag is None or not tag.known >> base & 1:
            return UNRELATED
        if not (tag.mixed >> base & 1 or operation.multiplies):
            return NO_CONTRACTION
        if owner is None or not (self.stack[-1].learns or {
                tags.view(x), tags.view(f)} <= set(self.stack[-1].views)):
            return NO_WEIGHTS
        return None

    def _state(self, x: Tensor, owner: Run | None) -> int:
        """The state that an operand is, or is a slice of; 0 if it is none.

        It may be a slice of what the module that adds was given itself, as in
        dual path networks; slices of the branch are none, as in Res2Net.
        """
        number = self.tags.number(x)
        if not number and owner is not None:
            number = next((n for n in self.tags.around(x)
                           if owner.given >> n & 1), 0)
        return number

    def _base(self, number: int, tag: Tag | None) -> int:
        """The state that a branch began from, where it joins a sum."""
        while tag is not None and not tag.known >> number & 1 and (
                number in self._state_before):
            number = self._state_before[number]
        return number

    def _begin(self, operation: Operation, owner: Run, x: Tensor, f: Tensor,
               args: tuple, kwargs: dict) -> Sum | None:
        """Take down a step, and measure what is about to be overwritten."""
        tag = self.tags.make(f)
        number = self._state(x, owner)
        base = self._base(number, tag)
        if is_traceable_wrapper_subclass(x):
            self.refused = self.refused or (
                f'{owner.name} adds to a state that is a {type(x).__name__}, '
                'whose parts cannot be measured sample by sample; record a '
                'model whose features are plain tensors')
            return None
        if base != number:
            found = self._step_of[number]
            found.ordinals.append(owner.additions - 1)
            found.of_branch |= tag.known
            return found
        self._take_over(x, number)
        found = self._new_sum(owner, number, x, f)
        for old in self._sums_of_operand[number]:
            if tag.known >> old.number & 1 and not old.left_out and (
                    old.owner is owner or not old.returned):
                old.left_out = 'an operand of it goes on as a later state'
        if found.left_out:
            return None
        f, gate, dropped = self._factors(f, base)
        found.gate = None if gate is None else tuple(gate.shape)
        first, alpha = args[0] is x, kwargs.get('alpha', 1)
        found.norms = self.norms and self.norms(
            x if first or alpha == 1 else x * alpha)
        if found.norms is not None and operation.name in ('add', 'sub'):
            found.norms.see_branch(f, gate, alpha if first else 1, dropped)
        return found

    def _factors(self, f: Tensor,
                 base: int) -> tuple[Tensor, Tensor | None, bool]:
        """Branch, attention value, and whether stochastic depth was there."""
        gate, dropped = None, False
        while (tag := self.tags.get(f)) is not None and (
                factor := tag.factor) is not None:
            if factor.gate is not None:
                if gate is not None or not factor.known >> base & 1:
                    break
                gate = factor.gate
            else:
                dropped = True
            f = factor.of
        return f, gate, dropped

    def _new_sum(self, owner: Run, state: int, x: Tensor, f: Tensor,
                 part: str | None = None) -> Sum:
        of_state, of_branch = self.tags.make(x).known, self.tags.make(f).known
        found = Sum(owner, [owner.additions - 1], tuple(x.shape), state,
                    operands={state, self.tags.mark(f)},
                    of_state=of_state, of_branch=of_branch, part=part)
        if x.dim() < 2 or not x.numel():
            found.left_out = (f'a state {tuple(x.shape)}: samples, (N, ...), '
                              'one or more, were expected')
        self.sums.append(found)
        self._pending.append(found)
        return found

    def _conclude(self, found: Sum, out: Tensor) -> None:
        """Make the sum a state."""
        norms = found.norms
        if norms is not None and (norms.f is None or found.number):
            norms.see_sum(out)
        found.number = self.tags.mark(out, new=True)
        found.version = self.tags.make(out).version
        if found not in found.owner.sums:
            found.owner.sums.append(found)
        if not found.state:
            return
        self._state_before[found.number] = found.state
        self._step_of[found.number] = found
        for number in found.operands:
            self._sums_of_operand[number].append(found)
        bit = 1 << found.number
        for run in reversed(self.stack):
            run.states |= bit
            if run.states >> found.state & 1:
                break

    def _take_over(self, x: Tensor, number: int) -> None:
        """A state that a sum became: that is what its step handed on."""
        plain = self.tags.make(x).plain
        for found in self._pending[:]:
            if found.number and plain >> found.number & 1:
                if tuple(x.shape) == found.shape or self._is_sum(x, found):
                    self._hand_on(found, None, x)
                self._settle(found)

    def _see_projection(self, owner: Run, a: Tensor, b: Tensor) -> Sum | None:
        """Take down a sum of two tensors that come from one state."""
        of_a, of_b = self.tags.get(a), self.tags.get(b)
        if of_a is None or of_b is None or a.dim() < 2:
            return None
        both = of_a.known & of_b.known & owner.given
        if not both & (of_a.mixed | of_b.mixed):
            return None
        found = Sum(owner, [owner.additions - 1], tuple(a.shape),
                    of_state=of_a.known & of_b.known,
                    of_branch=of_a.known | of_b.known, left_out=PROJECTS)
        self.sums.append(found)
        return found

    def _is_sum(self, t: Tensor, found: Sum) -> bool:
        return (self.tags.number(t) == found.number
                and self.tags.make(t).version == found.version)

    def _hand_on(self, found: Sum, run: Run | None, t: Tensor) -> None:
        same = self._is_sum(t, found)
        if not same and found.activation is None:
            found.activation = self.tags.make(t).made_by
        if found.norms is not None:
            found.norms.hand_on(run, t, same)

    def _settle(self, found: Sum) -> None:
        self._pending.remove(found)
        if found.norms is not None:
            found.norms.settle()

    def _save_states(self, written: Any) -> None:
        """Copy what is still needed and about to be overwritten."""
        if not self._pending or not is_real(written):
            return
        memory = self.tags.view(written)[0]
        for found in self._pending:
            norms = found.norms
            if norms is not None and norms.state is not None and (
                    self.tags.view(norms.state)[0] == memory):
                norms.state = norms.state.clone()
