"""Operations that a mode sees, and what each tells of its result."""

from typing import Any

import torch
import torch.nn as nn
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mmstepnet.torch_version import is_backward

from .operations import Operation, describe_operation
from .sums import Run, Sum
from .tags import Factor, Tag, Tags, gate_axis, is_real, tensors
from .wrappers import weights


class Tracer(TorchDispatchMode):
    """Passes on which states a tensor was computed from.

    A subclass looks at sums and follows modules.
    """

    # A mode that does not say so may not see them.
    supports_higher_order_operators = True

    names: dict[nn.Module, str]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled meanwhile: no need to tell Dynamo each time."""
        return False

    def forget(self) -> None:
        """Forget the last pass."""
        self.tags = Tags()
        self.stack: list[Run] = []
        self._weights: set[int] = set()  # their memory

    def _see_operation(self, operation: Operation, args: tuple,
              kwargs: dict) -> Sum | None:
        """Find out, before it is executed, whether an operation is a step."""
        raise NotImplementedError

    def _conclude(self, found: Sum, out: Tensor) -> None:
        """Make the sum a state."""
        raise NotImplementedError

    def _save_states(self, written: object) -> None:
        """Copy what is still needed and about to be overwritten."""
        raise NotImplementedError

    def __torch_dispatch__(self, func: Any, types: tuple,
                           args: tuple = (),
                           kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        operation = describe_operation(func)
        if operation.composite and torch.is_inference_mode_enabled():
            with self:  # elsewhere autograd takes it apart before
                return func._op_dk(
                    torch._C.DispatchKey.CompositeImplicitAutograd, *args,
                    **kwargs)
        if operation.views or is_backward():
            return func(*args, **kwargs)
        tags = self.tags.get_all(args[:operation.last])
        if kwargs:
            tags += self.tags.get_all(kwargs.values())
        found = factor = None
        if tags:
            # A product that is added has a tag, and so has the state.
            if operation.pairs and len(tags) > operation.multiplies:
                found = self._see_operation(operation, args, kwargs)
            elif operation.name == 'mul':
                factor = self._factor(operation, *args[:2])
            if operation.writes:
                self._save_states(args[0])
        out = func(*args, **kwargs)
        if not operation.blank and (tags or operation.random or not any(map(
                self._is_foreign, operation.given(args, kwargs)))):
            self._pass_on(operation, tags, out)
            if operation.follows and not operation.writes:
                self._follow(operation, args, out)
        if factor is not None:
            self.tags.make(out).factor = factor
        if found is not None:
            self._conclude(found, out)
        return out

    def _pass_on(self, operation: Operation, tags: list[Tag],
                 out: Any) -> None:
        """Say of the result which states it was computed from."""
        plain = mixed = 0
        random = operation.random
        for tag in tags:
            if operation.carries:
                plain |= tag.plain
                mixed |= tag.mixed
                random |= tag.random
            if not operation.hands_on_factors:
                tag.factor = None
        if operation.mixes:
            plain, mixed = 0, plain | mixed
        for t in tensors(out):
            if is_real(t):
                self.tags.make(t).update(
                    plain, mixed, random, operation.name, operation.writes)

    def _follow(self, operation: Operation, args: tuple, out: Any) -> None:
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
        if not number:
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
        return bool(number and tag.mixed >> number & 1)

    def _is_foreign(self, t: Tensor) -> bool:
        """Whether something that no mode sees computed a tensor.

        An extension that writes in a buffer does, or a detour by numpy.
        """
        if self.tags.get(t) is not None:
            return False
        if not self._weights:
            self._weights = {
                value.untyped_storage()._cdata for module in self.names
                for value in weights(module) if is_real(value)}
        return t.untyped_storage()._cdata not in self._weights
