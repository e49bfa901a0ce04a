"""Residual steps found by running: sums of a state and what became of it.

A state is a tensor that a module was given or returned. Hooks on all modules
number the states, and a dispatch mode, which sees every operation whatever
wrote it, passes on which states a tensor was computed from.
The sum of a state and of something that was computed from it by a contraction
is a residual step: the state is x_t, the other operand f(x_t), the sum x_{t+1}
before any activation, and a state from then on. Nothing is replaced.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn as nn
from torch import Tensor

from mmstepnet.torch_version import is_backward

from .additions import Additions
from .modes import hooked, in_mode, only_looks, uncompiled
from .observed import ObservedStep
from .sums import Call, Product
from .tags import Factor, Tags, is_real, tensors
from .trace import Trace
from .wrappers import name_modules, unwrap


class Finder(Additions):
    """Finds the residual steps of one forward pass after the other.

    Args:
        model (nn.Module): The model.
        norms (Callable, optional): Makes of a state what measures its step.
            None measures nothing. Defaults to None.

        traces (bool): Whether to keep a :class:`Trace`. Defaults to False.
        constants (Mapping, optional): Values to put in the place of gates, by
            the products with them: one number, or one a channel. Defaults to
            none.

    Attributes:
        wrong_shapes (dict): Modules with ``batch_first=False``, by the shapes
            of what they were given.
    """

    def __init__(
        self,
        model: nn.Module,
        norms: Callable[[Tensor], Any] | None = None,
        traces: bool = False,
        constants: Mapping[Product, Tensor] | None = None,
    ):
        super().__init__()
        self.model = model
        self.norms = norms
        self.traces = traces
        self.constants = constants or {}
        self.names = name_modules(model)
        # Of a wrapper and what is in it, the latter.
        self.modules = {name: m for m, name in self.names.items()}
        self.learns = {
            m for m in self.names if next(m.parameters(), None) is not None
        }
        self.tokens_first = {
            m for m in self.names if getattr(m, 'batch_first', True) is False
        }
        self.forget()

    def __deepcopy__(self, memo: dict) -> 'Finder':
        """Stay the same: hooks in a copy of the model do nothing here."""
        return self

    def __reduce__(self) -> tuple:
        """Become a finder of an empty model: a pickle keeps no hooks."""
        return Finder, (nn.Module(),)

    def forget(self) -> None:
        """Forget the last pass."""
        super().forget()
        self._trace = Trace() if self.traces else None
        self.wrong_shapes: dict[tuple, str] = {}
        self.thread: int | None = None

    @property
    def trace(self) -> Trace:
        """The trace of the last pass, if the finder ``traces``."""
        assert self._trace is not None
        return self._trace

    def attach(self) -> list:
        """Register all hooks; what is returned is to be removed.

        Compiled code, which would pass the hooks by, runs uncompiled until
        then.
        """
        handles: list = [self, uncompiled.enter()]
        for module in self.names:
            handles += [
                module.register_forward_pre_hook(
                    self._enter, with_kwargs=True
                ),
                # Runs where the module raises, too.
                module.register_forward_hook(self._leave, always_call=True),
            ]
            if isinstance(module, ObservedStep):
                handles.append(
                    module.observe(
                        self._observe if module.adds else self._observe_branch
                    )
                )
        return handles

    @contextmanager
    def following(self) -> Iterator[None]:
        """Follow passes in evaluation mode, of which nothing stays."""
        with (
            hooked(self.attach()),
            in_mode(self.model, False),
            torch.no_grad(),
            torch.random.fork_rng([]),
        ):
            yield

    def remove(self) -> None:
        """Leave the mode that an interrupted pass has left behind."""
        if self.thread is not None:
            self.__exit__(None, None, None)
            self.tags = Tags()
            self.thread = None

    def _is_here(self, module: nn.Module) -> bool:
        """Whether a module's hook belongs to the pass that is followed."""
        return (
            module in self.names
            and not is_backward()
            and self.thread == threading.get_ident()
        )

    @only_looks
    def _enter(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        if module is self.model and not is_backward():
            if self.thread not in (None, threading.get_ident()):
                raise RuntimeError(
                    'the model runs in two threads at once, whose samples get '
                    'mixed up; record one that runs in one thread'
                )
            self.remove()  # what a pass that was interrupted has left
            self.forget()
            self.thread = threading.get_ident()
            self.__enter__()
        elif not self._is_here(module):
            return
        outer = self.stack[-1] if self.stack else None
        call = Call(
            self.names[module],
            module,
            outer,
            module in self.learns,
            isinstance(module, (nn.RNNBase, ObservedStep))
            or outer is not None
            and outer.is_closed,
        )
        for t in filter(is_real, tensors(*args, kwargs)):
            call.given |= 1 << self._mark(t, outer)
            call.known |= self.tags.make(t).known
            call.shapes.add(tuple(t.shape))
            if module in self.tokens_first:
                self.wrong_shapes[tuple(t.shape)] = call.name
        self.stack.append(call)
        if outer is not None:
            outer.inner.append(call)
        if self._trace is not None:
            self._trace.enter(
                module, call.name, args, kwargs, module is self.model
            )

    def _mark(self, t: Tensor, call: Call | None) -> int:
        """Make a state of what a call passes to a child, or returns."""
        number = self.tags.number(t)
        if number:
            return number
        if call is not None and self._is_foreign(t):
            self.tags.make(t).mixed |= call.known
        return self.tags.mark(t)

    @only_looks
    def _leave(self, module: nn.Module, args: tuple, out: object) -> None:
        if not self._is_here(module):
            return
        if any(call.module is module for call in reversed(self.stack)):
            self._close(module, out)
            if self._trace is not None:
                self._trace.leave(module, self.names[module], out)
        # Else it was refused when it began.
        if not self.stack:
            self.remove()

    def _close(self, module: nn.Module, out: object) -> None:
        """End the call of a module."""
        call = self.stack.pop()
        while call.module is not module:  # left behind by what raised
            call = self.stack.pop()
        outs = list(filter(is_real, tensors(out)))
        call.returned = {self._mark(t, call) for t in outs}
        call.shapes &= {tuple(t.shape) for t in outs}
        for candidate in call.sums:
            candidate.returned = any(
                self.tags.make(t).plain >> candidate.number & 1 for t in outs
            )
        for candidate in self._pending[:]:
            if call.encloses(candidate.owner) and (
                not any(self._record_output(candidate, call, t) for t in outs)
                or not self.stack
            ):
                self._finish(candidate)

    def _observe(
        self,
        module: ObservedStep,
        x: Tensor,
        f: Tensor,
        step: Tensor | None,
        out: Tensor,
    ) -> None:
        """Take down what a step that adds reports."""
        call = (
            self.stack[-1].outer
            if (self._is_here(module) and self.stack)
            else None
        )
        if call is None:
            return
        part = self.names[module].rpartition('.')[2]
        state = self.tags.number(x) or self.tags.mark(x)
        candidate = self._new_sum(call, state, x, f, part)
        if step is not None:
            candidate.gate = tuple(step.shape)
            candidate.product = self._products.get(Tags.view(step))
            candidate.is_constant = self._is_constant(step, x)
        if self.norms is not None and not candidate.left_out:
            candidate.norms = self.norms(x)
            candidate.norms.see_branch(f, step, dropped=True)
        self._make_state(candidate, out)
        self._record_output(candidate, None, out)
        self._finish(candidate)

    def _observe_branch(
        self,
        module: ObservedStep,
        x: Tensor,
        f: Tensor,
        step: Tensor | None,
        scaled: Tensor,
    ) -> None:
        """Take down what a step has multiplied a branch by."""
        if step is None or not self._is_here(module):
            return
        tag = self.tags.make(scaled)
        # No mode sees what a kernel has computed.
        tag.plain |= self.tags.make(f).plain
        tag.mixed |= self.tags.make(f).mixed
        tag.factor = Factor(f, step, self.tags.make(x).known)
        tag.scaled |= self._is_constant(step, x)

    def _is_constant(self, step: Tensor, x: Tensor) -> bool:
        """Whether a step was computed from nothing that the state was."""
        return not self.tags.make(step).known & self.tags.make(x).known


def trace_pass(model: nn.Module, *inputs: Any, **named: Any) -> Trace:
    """Run a model once, in evaluation mode, and say what happened.

    Args:
        model (nn.Module): Model, or a wrapper of one.
        *inputs: What its ``forward`` takes.
        **named: The same by name.

    Returns:
        Trace: Print it to see which module was given, and returned, which
        tensor, and what was added to what.
    """
    finder = Finder(unwrap(model), traces=True)
    with finder.following():
        model(*inputs, **named)
    return finder.trace
