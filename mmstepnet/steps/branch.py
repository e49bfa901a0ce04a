"""A step at the end of a branch: f becomes f ⊗ Δt before the block adds it.

The block's own ``forward`` runs as it is and adds by itself. One of its
modules is given the state x_t or returns it, another one returns the branch
f(x_t) or is given it. A hook at each of these two spots is all that a step
needs. What comes behind (stochastic depth, the sum, an activation) stays the
block's own.

A hook takes the step that stands, by its name, in the block that its thread
runs. So blocks and steps may be copied, wrapped and exchanged. The pass of a
block begins and ends in the ``forward`` of a class that is made of its own:
a compiler would read each hook of the block by itself.
"""

import threading
from collections import Counter
from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.nn as nn
from torch import Tensor

from mmstepnet.generated import Generated, generated_class
from mmstepnet.torch_version import is_compiling

from .residual import ResidualStep
from .tail import read_branch, take_branch


class Spot(NamedTuple):
    """A tensor of a block: what one of its modules is given or returns.

    A spot is a name: whoever stands there when the block runs is hooked.
    """

    module: str
    """Name in the block; ``''`` is the block itself."""
    returned: bool
    key: int | str
    """Place among the arguments or results, or name of the argument."""
    call: int = 0
    """Which of the module's calls in a pass of the block, from 0."""
    calls: int = 1
    """How many there are."""

    def __str__(self) -> str:
        who = self.module or 'the block'
        return f'{who} {"returns" if self.returned else "is given"}'

    def take(self, args: tuple, last: Any) -> Tensor:
        """The tensor.

        Args:
            args (tuple): What the module is given by place.
            last (object): What it is given by name, or what it returns.
        """
        key: Any = self.key
        by_name = isinstance(self.key, str)
        held = last if self.returned or by_name else args
        return held[key] if isinstance(held, (tuple, list, dict)) else held

    def put(self, args: tuple, last: Any, t: Tensor) -> Any:
        """What a hook returns to put another tensor in the place of this."""
        key: Any = self.key
        if isinstance(key, str):
            return args, {**last, key: t}
        if not self.returned:
            return (*args[:key], t, *args[key + 1 :]), last
        return (
            type(last)((*last[:key], t, *last[key + 1 :]))
            if isinstance(last, (tuple, list))
            else t
        )


class Place(NamedTuple):
    """Where a block takes a step, and the axes of its state."""

    name: str
    """Attribute of the block that holds the step."""
    state: Spot
    branch: Spot
    dims: int
    batch: int
    channels: int
    width: int

    def __str__(self) -> str:
        spots = f'x_t is what {self.state}, f what {self.branch}'
        return f'takes {self.name}: {spots}'

    def to_maps(self, t: Tensor) -> Tensor:
        """View a state as maps, (N, C, H, W)."""
        t = t.movedim((self.batch, self.channels), (0, 1))
        return (
            t.flatten(3)
            if self.dims > 4
            else t[(..., *[None] * (4 - self.dims))]
        )

    def from_maps(self, step: Tensor, f: Tensor) -> Tensor:
        """View a step that was chosen for such maps as one for a branch."""
        if self.dims != 4:
            places = [
                size
                for axis, size in enumerate(f.shape)
                if axis not in (self.batch, self.channels)
            ]
            step = step.reshape(
                *step.shape[:2],
                *(places if step.shape[2:].numel() > 1 else [1] * len(places)),
            )
        return step.movedim((0, 1), (self.batch, self.channels))


class BlockPass:
    """One run of a block.

    Args:
        places (tuple[Place, ...]): Where its steps stand.
        steps (dict[str, Any]): What stands there by name: the steps,
            copies of them, or wrappers around them.
    """

    def __init__(self, places: tuple[Place, ...], steps: dict[str, Any]):
        self.places = places
        self.steps = steps
        self.states: dict[str, Tensor] = {}
        """States x_t by the steps' names, between their two spots."""
        self.counts: Counter = Counter()
        """How often each step has run."""
        self.calls: Counter = Counter()
        """How often the module at each spot was called."""

    def is_due(self, spot: Spot, name: str) -> bool:
        """Whether this call of a spot's module is the one that is meant."""
        self.calls[spot, name] += 1
        return (self.calls[spot, name] - 1) % spot.calls == spot.call


class _Thread(threading.local):
    """What runs in a thread: one model may run in several at once.

    Attributes:
        passes (list[BlockPass]): Those that have begun, from outside.
        alone (WeakKeyDictionary): By steps, what stands for a pass where no
            block runs: a graph of torch.fx calls the modules of one alone.
    """

    def __init__(self) -> None:
        self.passes: list[BlockPass] = []
        self.alone: WeakKeyDictionary = WeakKeyDictionary()


_THREAD = _Thread()


class StepHook:
    """What a step hangs on a module of its block.

    Args:
        place (Place): Where the step stands.
        step (nn.Module): What stands there now; it is asked where no block
            runs.
    """

    def __init__(self, place: Place, step: nn.Module):
        self.place = place
        self.step = step

    def __eq__(self, other: object) -> bool:
        """Whether it does the same in each block that has such a place."""
        return isinstance(other, type(self)) and self.place == other.place

    __hash__ = object.__hash__

    def find_pass(self) -> BlockPass:
        """That of the innermost block which runs and has such a place."""
        for run in reversed(_THREAD.passes):
            if self.place in run.places:
                return run
        return _THREAD.alone.setdefault(self.step, BlockPass((), {}))


class KeepsState(StepHook):
    """Keeps the state, where it is given or returned."""

    @property
    def spot(self) -> Spot:
        """Where it hangs."""
        return self.place.state

    def __call__(
        self, module: nn.Module, args: tuple, last: Any = None
    ) -> None:
        run = self.find_pass()
        name = self.place.name
        if run.is_due(self.spot, name):
            run.states[name] = self.spot.take(args, last)


class ScalesBranch(StepHook):
    """Puts the scaled branch in the place of the branch."""

    @property
    def spot(self) -> Spot:
        """Where it hangs."""
        return self.place.branch

    def __call__(self, module: nn.Module, args: tuple, last: Any) -> Any:
        run = self.find_pass()
        name = self.place.name
        if not run.is_due(self.spot, name):
            return None  # nothing is changed
        if name not in run.states:
            raise RuntimeError(
                f'{name} has a branch, from {self.spot.module!r}, but no '
                f'state, from {self.place.state.module or "the block"!r}: '
                f'checkpoint the whole block, not a part of it, and let '
                f'torch.fx trace both of these modules or neither'
            )
        x = run.states.pop(name)
        f = self.spot.take(args, last)
        run.counts[name] += 1
        step = run.steps.get(name, self.step)
        return self.spot.put(args, last, step(x, f))


class SteppedBlock(Generated):
    """A block that takes steps where its branches end.

    It computes what its host's class says.
    """

    step_places: tuple[Place, ...] = ()
    """Where its steps stand."""

    @classmethod
    def _named_over(cls, host: type) -> tuple[str, dict[str, Any]]:

        @wraps(host.forward)  # torch.fx asks for its arguments
        def forward(self: Any, *args, **kwargs) -> Any:
            return self._run(host.forward, args, kwargs)

        return host.__name__, dict(forward=forward)

    def _run(self, forward: Callable, args: tuple, kwargs: dict) -> Any:
        """Run the host's ``forward``, and see that each step ran once.

        An output at Δt = 1 would not show it.
        """
        if getattr(self, '_is_replica', False):
            raise RuntimeError(
                f'{self.step_places[0].name} is in a replica of '
                f'nn.DataParallel, whose gates would learn nothing; take '
                f'DistributedDataParallel'
            )
        self.place_hooks()
        run = BlockPass(
            self.step_places,
            {
                place.name: self._modules[place.name]
                for place in self.step_places
            },
        )
        for place in self.step_places:
            if not place.state.module:  # it is given the state itself
                run.states[place.name] = place.state.take(args, kwargs)
        _THREAD.passes.append(run)
        try:
            out = forward(self, *args, **kwargs)
        finally:
            _THREAD.passes.pop()
        first = out[0] if isinstance(out, (tuple, list)) and out else out
        if any(first is t for t in (*args, *kwargs.values())):
            return out
        for place in self.step_places:
            count = run.counts[place.name]
            if isinstance(first, torch.fx.Proxy) and not (
                count or place.name in run.states
            ):
                continue  # leaves stand at both spots: the graph runs them
            if isinstance(first, torch.fx.Proxy) and not count:
                raise RuntimeError(
                    f'{place.name} has a state, from '
                    f'{place.state.module or "the block"!r}, but no branch, '
                    f'from {place.branch.module!r}: let torch.fx trace both '
                    f'of these modules or neither'
                )
            if count != 1:
                raise RuntimeError(
                    f'{place.name} of {self.host.__name__} ran {count} times '
                    f'in one pass, between '
                    f'{place.state.module or "the block"!r} and '
                    f'{place.branch.module!r}; the block goes another way '
                    f'than with the example of insert_steps, so remove the '
                    f'steps and insert them anew'
                )
        return out

    def place_hooks(self) -> None:
        """Hook whoever stands at the spots now.

        Layers are wrapped (LoRA), converted (SyncBN), fused and exchanged.

        Raises:
            RuntimeError: Nobody does: the network was changed. Or somebody
                else does than before, and a compiler reads this.
        """
        for place in self.step_places:
            step: Any = self._modules[place.name]
            for hook in KeepsState(place, step), ScalesBranch(place, step):
                if not hook.spot.module:
                    continue
                module = self._at(hook.spot, place.name)
                hooks = (
                    module._forward_hooks
                    if hook.spot.returned
                    else module._forward_pre_hooks
                )
                if any(hook == other for other in hooks.values()):
                    continue
                if is_compiling():
                    raise RuntimeError(
                        f'the module {hook.spot.module}, at which '
                        f'{place.name} of {self.host.__name__} stands, is '
                        f'another one; call the model once before it is '
                        f'compiled, or under '
                        f"torch.compiler.set_stance('force_eager')"
                    )
                remove_hooks(self, hook.__eq__)
                if hook.spot.returned:
                    module.register_forward_hook(hook)
                else:
                    module.register_forward_pre_hook(hook, with_kwargs=True)

    def _at(self, spot: Spot, name: str) -> nn.Module:
        try:
            return self.get_submodule(spot.module)
        except AttributeError as error:
            raise RuntimeError(
                f'the module {spot.module}, at which {name} of '
                f'{self.host.__name__} stands, is gone; call remove_steps '
                f'before the network is changed in this way'
            ) from error


class BranchStep(ResidualStep):
    r"""Scales a branch by the step that an attention chooses.

    Of :math:`x_{t+1} = x_t + f(x_t) \otimes \Delta t` it computes
    :math:`f(x_t) \otimes \Delta t`; the block adds. Where
    :func:`~.tail.read_branch` knows all its parts, it is one function.

    Args:
        attention (nn.Module): See :class:`ResidualStep`.
        place (Place): Where it stands in its block.
    """

    adds = False

    def __init__(self, attention: nn.Module, place: Place):
        super().__init__(attention)
        self.place = place

    def forward(self, x: Tensor, f: Tensor) -> Tensor:
        """Scale the branch.

        Args:
            x (Tensor): State x_t, with the axes of the place.
            f (Tensor): Branch f(x_t), likewise.

        Returns:
            Tensor: f ⊗ Δt, of the same shape.
        """
        by_hand = read_branch(self, x, f)
        if by_hand is not None:
            return take_branch(by_hand, self, x, f)
        place = self.place
        step = self.choose(place.to_maps(x), place.to_maps(f))
        scaled = f
        if step is not None:
            step = place.from_maps(step, f)
            scaled = f * step
        self.report(x, f, step, scaled)
        return scaled


def attach(block: Any, step: BranchStep) -> None:
    """Make a step a child of a block, and hook it."""
    if not isinstance(block, SteppedBlock):
        block.__class__ = generated_class(SteppedBlock, type(block))
    block.add_module(step.place.name, step)
    block.step_places = (*block.step_places, step.place)
    block.place_hooks()


def detach(block: Any) -> None:
    """Take all steps at branches' ends out of a block, whatever stands there.

    It becomes its host's again.
    """
    for place in block.step_places:
        delattr(block, place.name)
    del block.step_places
    remove_hooks(block, lambda hook: isinstance(hook, StepHook))
    block.__class__ = block.host


def remove_hooks(module: nn.Module, is_meant: Callable[[Any], bool]) -> None:
    """Remove some hooks of a module and of all that is in it."""
    for part in module.modules():
        for hooks, noted in (
            (part._forward_hooks, part._forward_hooks_with_kwargs),
            (part._forward_pre_hooks, part._forward_pre_hooks_with_kwargs),
        ):
            for key in [k for k, hook in hooks.items() if is_meant(hook)]:
                del hooks[key]
                noted.pop(key, None)
