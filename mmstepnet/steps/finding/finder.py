"""Residual steps found by running: sums of a state and what became of it.

A state is a tensor that a running module, or a child of it, was given. Hooks
on all modules keep the states, and a dispatch mode, which sees every
operation whatever wrote it, passes on which states a tensor was computed from.
The sum of a state and of something that was computed from it by a contraction
is a residual step: the state is x_t, the other operand f(x_t), the sum x_{t+1}
before any activation, and a state from then on. Nothing is replaced.
"""

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator

import torch
import torch.nn as nn
from torch import Tensor
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    is_traceable_wrapper_subclass,
)
from torch.utils.hooks import RemovableHandle

from mmstepnet.torch_version import is_backward

from ..residual import ResidualStep
from .operations import Operation, describe_operation
from .sums import Norms, Run, Sum
from .tags import Factor, Tag, Tags, gate_axis, is_real, tensors
from .wrappers import name_modules

PASSIVE = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
"""What they are given is no state unless another module is given it."""

NO_STATE = 'neither operand is a state that a module was given'
PROJECTS = ('both operands were computed from the state, as where the '
            'identity is projected, or by hyper-connections')


class Finder(TorchDispatchMode):
    """Finds the residual steps of one forward pass after the other.

    Args:
        model (nn.Module): The model.
        blocks (set[str]): Names of the blocks, once they are known: a state
            is kept until its block returns, and no longer.
        norms (Callable, optional): Makes of a state what measures its step.
            None measures nothing. Defaults to None.

    Attributes:
        sums (list[Sum]): Steps of the last pass, and what might be one.
        missed (Counter): Sums of two tensors that are none, by the module's
            name and the reason.
        wrong_shapes (dict): Modules with ``batch_first=False``, by the shapes
            of what they were given.
        outside (Counter): Modules that ran without the model or in another
            thread, by name.
    """

    # A mode that does not say so may not see them.
    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled meanwhile: no need to tell Dynamo each time."""
        return False

    def __init__(self, model: nn.Module, blocks: Collection[str] = (),
                 norms: Callable[[Tensor], Norms] | None = None):
        super().__init__()
        self.model, self.blocks, self.norms = model, set(blocks), norms
        self.names = name_modules(model)
        self.learns = {m for m in self.names if _has_weights(m)}
        self.elementary = {m for m in self.names if _is_elementary(m)
                           and m is not model}
        self.tokens_first = {m for m in self.names
                             if getattr(m, 'batch_first', True) is False}
        self.outside: Counter = Counter()
        self.forget()

    def __deepcopy__(self, memo: dict) -> 'Finder':
        """Stay one: hooks in a copy of the model lead here in vain."""
        return self

    def __reduce__(self) -> tuple:
        """Those in a pickle lead to a finder of nothing."""
        return Finder, (nn.Module(), )

    def forget(self) -> None:
        """Forget the last pass."""
        self.tags = Tags()
        self.stack: list[Run] = []
        self.sums: list[Sum] = []
        self.missed: Counter = Counter()
        self.wrong_shapes: dict[tuple, str] = {}
        self.thread: int | None = None
        self._weights: set[int] = set()  # their memory
        self._pending: list[Sum] = []
        self._before: dict[int, int] = {}  # state of a sum, by its number
        self._steps: dict[int, Sum] = {}
        self._operands: dict[int, list[Sum]] = defaultdict(list)

    # Modules

    def attach(self) -> list[RemovableHandle]:
        """Register all hooks."""
        handles = []
        for module in self.names:
            if type(module) not in PASSIVE:
                handles.append(module.register_forward_pre_hook(
                    self._enter, with_kwargs=True))
            if module not in self.elementary:
                # Runs where the module raises, too.
                handles.append(module.register_forward_hook(
                    self._leave, always_call=True))
            if isinstance(module, ResidualStep):
                handles.append(module.observe(self._observe))
        return handles

    def _is_here(self, module: nn.Module) -> bool:
        """Whether a module's hook belongs to the pass that is followed."""
        if module not in self.names or is_backward():
            return False
        if self.thread == threading.get_ident():
            return True
        if module is not self.model:
            self.outside[self.names[module]] += 1
        elif self.thread is not None:
            raise RuntimeError(
                'the model runs in two threads at once, whose samples get '
                'mixed up; record one that runs in one thread')
        return False

    def _enter(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        if not self._is_here(module):
            if module is not self.model or is_backward():
                return
            self.forget()
            self.thread = threading.get_ident()
            self.__enter__()
        outer = self.stack[-1] if self.stack else None
        given, known, learns = 0, 0, module in self.learns
        views = []
        for t in tensors(*args, kwargs):
            if is_real(t):
                given |= 1 << self.tags.mark(t)
                known |= self.tags.get(t).known
                if not learns:
                    views.append(self.tags.view(t))
                if module in self.tokens_first:
                    self.wrong_shapes[tuple(t.shape)] = self.names[module]
            elif t.is_nested:
                raise ValueError(
                    f'{self.names[module]} ({type(module).__name__}) takes a '
                    'nested tensor, which has no samples to measure. PyTorch '
                    'makes one of a padding mask; call torch.backends.mha.'
                    'set_fastpath_enabled(False) before you record')
        if outer is not None:
            outer.states |= given
        if module not in self.elementary:
            self.stack.append(Run(
                self.names[module], module, outer, learns,
                isinstance(module, ResidualStep)
                or outer is not None and outer.told, views, known, given,
                given))
            if outer is not None:
                outer.inner.append(self.stack[-1])

    def _leave(self, module: nn.Module, args: tuple, out: object) -> None:
        if not self._is_here(module):
            return
        if any(run.module is module for run in reversed(self.stack)):
            self._close(module, out)
        # Else it was refused when it began.
        if not self.stack:
            self.__exit__(None, None, None)
            self.tags, self.thread = Tags(), None

    def _close(self, module: nn.Module, out: object) -> None:
        """End the run of a module."""
        run = self.stack.pop()
        while run.module is not module:  # left behind by what raised
            run = self.stack.pop()
        outs = list(filter(is_real, tensors(out)))
        for t in outs:
            if self._is_foreign(t):
                self.tags.make(t).mixed |= run.known
        run.returned = {self.tags.mark(t) for t in outs}
        for found in run.sums:
            found.returned = any(
                self.tags.get(t).plain >> found.number & 1 for t in outs)
        for found in self._pending[:]:
            if run.encloses(found.owner) and (
                    not self._returns(run, found, outs)
                    or run.name in self.blocks or not self.stack):
                self._settle(found)

    def _is_foreign(self, t: Tensor) -> bool:
        """Whether something that no mode sees computed a tensor.

        An extension that writes in a buffer does, or a detour by numpy.
        """
        if self.tags.get(t) is not None:
            return False
        if not self._weights:
            self._weights = {
                value.untyped_storage()._cdata for module in self.names
                for value in _weights(module) if is_real(value)}
        return t.untyped_storage()._cdata not in self._weights

    def _returns(self, run: Run, found: Sum, outs: list[Tensor]) -> bool:
        """See what a run returns of a sum, if anything."""
        for t in outs:
            if self.tags.get(t).plain >> found.number & 1 and (
                    tuple(t.shape) == found.shape or self._is_sum(t, found)):
                self._hand_on(found, run, t)
                return True
        return False

    def _is_sum(self, t: Tensor, found: Sum) -> bool:
        return (self.tags.number(t) == found.number
                and self.tags.get(t).version == found.version)

    def _hand_on(self, found: Sum, run: Run | None, t: Tensor) -> None:
        same, tag = self._is_sum(t, found), self.tags.get(t)
        if not same and found.activation is None:
            found.activation = tag.made_by
        if found.norms is not None:
            found.norms.hand_on(
                run, t, (self.tags.view(t), tag.version), same)

    def _settle(self, found: Sum) -> None:
        self._pending.remove(found)
        if found.norms is not None:
            found.norms.settle()

    def _observe(self, module: ResidualStep, x: Tensor, f: Tensor,
                 step: Tensor | None, out: Tensor) -> None:
        """Take down what a ResidualStep tells."""
        if not self._is_here(module) or not self.stack:
            return
        run = self.stack[-1].outer
        part = self.names[module].rpartition('.')[2]
        for old in self._operands.get(self.tags.number(x), ()):
            if old.owner is run and old.part is None:
                old.left_out = 'a part of a step'
        found = self._new_sum(run, x, f, part=part)
        if step is not None:
            found.gate = tuple(step.shape)
        if self.norms is not None:
            found.norms = self.norms(x)
            found.norms.see_branch(f, step, 1, dropped=True)
        self._conclude(found, out)
        self._hand_on(found, None, out)
        self._settle(found)

    # Operations

    def __torch_dispatch__(self, func: object, types: tuple,
                           args: tuple = (),
                           kwargs: dict | None = None) -> object:
        kwargs = kwargs or {}
        operation = describe_operation(func)
        if operation.composite and torch.is_inference_mode_enabled():
            with self:  # elsewhere autograd takes it apart before
                return func._op_dk(
                    torch._C.DispatchKey.CompositeImplicitAutograd, *args,
                    **kwargs)
        if operation.views or is_backward():
            return func(*args, **kwargs)
        given = list(filter(is_real, tensors(*args, kwargs)))
        tags = [tag for t in given if (tag := self.tags.get(t)) is not None]
        found = factor = None
        if tags and (operation.pairs or operation.fused):
            found = self._look(operation, args, kwargs)
        elif tags and operation.name == 'mul':
            factor = self._factor(operation, *args[:2])
        if tags and operation.writes:
            self._save_states(args[0])
        out = func(*args, **kwargs)
        if not operation.blank and (tags or operation.random or not any(
                map(self._is_foreign, given))):
            self._pass_on(operation, tags, out)
            if operation.follows and not operation.writes:
                self._follow(operation, args, out)
        if factor is not None:
            self.tags.make(out).factor = factor
        if found is not None:
            self._conclude(found, out)
        return out

    def _pass_on(self, operation: Operation, tags: list[Tag],
                 out: object) -> None:
        """Say of the result which states it was computed from."""
        plain = mixed = 0
        random = operation.random
        for tag in tags if operation.carries else ():
            plain |= tag.plain
            mixed |= tag.mixed
            random |= tag.random
        if operation.mixes:
            plain, mixed = 0, plain | mixed
        if not operation.hands_on_factors:
            for tag in tags:
                tag.factor = None
        for t in tensors(out):
            if is_real(t):
                self.tags.make(t).update(
                    plain, mixed, random, operation.name, operation.writes)

    def _follow(self, operation: Operation, args: tuple, out: object) -> None:
        """Say of the result of some operations which state it is."""
        if not args or not is_real(args[0]):
            return
        x = args[0]
        if operation.name in ('mul', 'div'):
            if not self._is_number(args[1]):
                return
            if operation.name == 'div':
                self.tags.make(out).divided = x
        number = self.tags.number(x)
        if number is None:
            return
        if operation.norm:
            bit = 1 << self.tags.mark(tensors(out)[0])
            for run in self.stack[-2:]:
                run.states |= bit
        elif is_real(out):
            self.tags.mark(out, number)

    def _is_number(self, other: object) -> bool:
        return not isinstance(other, Tensor) or (
            other.numel() == 1 and self.tags.get(other) is None)

    def _factor(self, operation: Operation, a: Tensor,
                b: Tensor) -> Factor | None:
        """How a product is made, if one of its factors is a gate."""
        if not (is_real(a) and is_real(b)):
            return None
        for f, gate in ((a, b), (b, a)):
            axis, tag = gate_axis(gate, f), self.tags.get(gate)
            if axis is None or tag is None:
                continue
            if axis == 0 and tag.random and not tag.known:
                known = self.tags.get(f)
                of = f if known is None or known.divided is None else (
                    known.divided)
                gate = None
            elif axis and (gate.numel() < f.numel() or 0 in gate.stride()
                           or self._comes_from(tag, f)):
                of = f
            else:
                continue
            if operation.writes and of is a:
                of = of.clone()
            return Factor(of, gate, tag.known)
        return None

    def _comes_from(self, tag: Tag, f: Tensor) -> bool:
        """Whether a gate as large as f, a map of one place, is one of it."""
        number = self.tags.number(f)
        return number is not None and bool(tag.mixed >> number & 1)

    def _save_states(self, written: object) -> None:
        """Copy what is still needed and about to be overwritten."""
        if not self._pending or not is_real(written):
            return
        memory = self.tags.view(written)[0]
        for found in self._pending:
            if found.norms is not None and (
                    self.tags.view(found.norms.state)[0] == memory):
                found.norms.state = found.norms.state.clone()

    # Sums

    def _look(self, operation: Operation, args: tuple,
              kwargs: dict) -> Sum | None:
        """Find out, before it is executed, whether an operation is a step."""
        if not self.stack or self.stack[-1].told:
            return None
        owner = next((r for r in reversed(self.stack) if r.learns), None)
        reason = None
        for x, f in operation.operands(args, kwargs):
            if not (is_real(x) and is_real(f)) or not operation.fits(x, f):
                continue
            if reason is None and owner is not None:
                owner.additions += 1
            why = self._refuse(operation, x, f, owner)
            if why is None:
                return self._begin(operation, owner, x, f, args, kwargs)
            if reason in (None, NO_STATE):
                reason = why
        if reason is None or operation.fused:
            return None
        self.missed[(owner or self.stack[-1]).name, reason] += 1
        return owner and self._see_projection(owner, *args[:2])

    def _refuse(self, operation: Operation, x: Tensor, f: Tensor,
                owner: Run | None) -> str | None:
        """Why the sum of two tensors is no step from the first."""
        tags = self.tags
        number, tag = tags.number(x), tags.get(f)
        if number is None or (
                number == tags.number(f) and not operation.multiplies):
            return NO_STATE
        base = self._base(number, tag)
        if tag is None or not tag.known >> base & 1:
            return 'neither operand was computed from the other'
        if not (tag.mixed >> base & 1 or operation.multiplies):
            return 'no contraction lies between the operands'
        adder = self.stack[-1]
        if owner is None or not (adder.learns or {
                tags.view(x), tags.view(f)} <= set(adder.views)):
            return 'the module that adds has no weights'
        if not any(run.states >> number & 1 for run in self.stack):
            return NO_STATE
        return None

    def _base(self, number: int, tag: Tag | None) -> int:
        """The state that a branch began from, where it joins a sum."""
        while tag is not None and not tag.known >> number & 1 and (
                number in self._before):
            number = self._before[number]
        return number

    def _begin(self, operation: Operation, owner: Run, x: Tensor, f: Tensor,
               args: tuple, kwargs: dict) -> Sum | None:
        """Take down a step, and measure what is about to be overwritten."""
        tag = self.tags.get(f)
        number = self.tags.number(x)
        base = self._base(number, tag)
        if is_traceable_wrapper_subclass(x):
            raise ValueError(  # Python takes a TypeError for another operand
                f'{owner.name} adds to a state that is a {type(x).__name__}, '
                'whose parts cannot be measured sample by sample; record a '
                'model whose features are plain tensors')
        if operation.fused:
            found = self._new_sum(owner, x, f)
            found.left_out = f'a fused addition: {operation.name}'
            return None
        if base != number:
            found = self._steps[number]
            found.ordinals.append(owner.additions - 1)
            found.of_branch |= tag.known
            return found
        self._take_over(x, number)
        found = self._new_sum(owner, x, f)
        for old in self._operands[number]:
            if tag.known >> old.number & 1 and not old.left_out and (
                    old.owner is owner or not old.returned):
                old.left_out = 'an operand of it goes on as a later state'
        if x.dim() < 2 or not x.numel():
            found.left_out = (f'a state {tuple(x.shape)}: samples, (N, ...), '
                              'one or more, were expected')
            return None
        f, gate, dropped = self._factors(f, base)
        found.gate = None if gate is None else tuple(gate.shape)
        if self.norms is not None:
            first = args[0] is x
            alpha = kwargs.get('alpha', 1)
            found.norms = self.norms(
                x if first or alpha == 1 else x * alpha)
            if operation.name in ('add', 'sub'):
                found.norms.see_branch(
                    f, gate, alpha if first else 1, dropped)
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

    def _new_sum(self, owner: Run, x: Tensor, f: Tensor,
                 part: str | None = None) -> Sum:
        of_state, of_branch = (self.tags.make(t).known for t in (x, f))
        found = Sum(owner, [owner.additions - 1], tuple(x.shape),
                    self.tags.mark(x),
                    operands={self.tags.mark(x), self.tags.mark(f)},
                    of_state=of_state, of_branch=of_branch, part=part)
        self.sums.append(found)
        self._pending.append(found)
        return found

    def _conclude(self, found: Sum, out: Tensor) -> None:
        """Make the sum a state."""
        norms = found.norms
        if norms is not None and (norms.f is None or found.number):
            norms.see_sum(out)
        found.number = self.tags.mark(out, new=True)
        found.version = self.tags.get(out).version
        if found not in found.owner.sums:
            found.owner.sums.append(found)
        if not found.state:
            return
        self._before[found.number] = found.state
        self._steps[found.number] = found
        for number in found.operands:
            self._operands[number].append(found)
        bit = 1 << found.number
        for run in reversed(self.stack):
            run.states |= bit
            if run.states >> found.state & 1:
                break

    def _take_over(self, x: Tensor, number: int) -> None:
        """A state that a sum became: that is what its step handed on."""
        plain = self.tags.get(x).plain
        for found in self._pending[:]:
            if found.number and plain >> found.number & 1:
                if tuple(x.shape) == found.shape or self._is_sum(x, found):
                    self._hand_on(found, None, x)
                self._settle(found)

    def _see_projection(self, owner: Run, a: Tensor, b: Tensor) -> Sum | None:
        """Take down a sum of two tensors that come from one state."""
        tags = self.tags.get(a), self.tags.get(b)
        if None in tags or a.dim() < 2:
            return None
        both = tags[0].known & tags[1].known & owner.given
        if not both & (tags[0].mixed | tags[1].mixed):
            return None
        found = Sum(owner, [owner.additions - 1], tuple(a.shape),
                    left_out=PROJECTS)
        self.sums.append(found)
        return found


def _is_elementary(module: nn.Module) -> bool:
    """Whether PyTorch's own code computes a module, which adds no states."""
    return not module._modules and type(module).__module__.startswith(
        'torch.nn.modules.')


def _weights(module: nn.Module) -> Iterator[Tensor]:
    """Parameters and buffers of a module itself, and tensors in their place.

    FSDP and pruning keep weights as plain attributes.
    """
    for values in (module._parameters, module._buffers, vars(module)):
        yield from (v for v in values.values() if isinstance(v, Tensor))


def _has_weights(module: nn.Module) -> bool:
    """Whether a module has parameters, or tensors in their place."""
    return any(
        isinstance(value, Tensor) for part in module.modules()
        for value in (*part._parameters.values(), *vars(part).values()))
