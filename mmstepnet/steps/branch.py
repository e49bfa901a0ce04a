"""A step at the end of a branch: f becomes f ⊗ Δt before the block adds it.

The block's own ``forward`` runs as it is and adds by itself. One of its
modules is given the state x_t or returns it, another one returns the branch
f(x_t) or is given it. A hook at each of these two spots is all that a step
needs. What comes behind (stochastic depth, the sum, an activation) stays the
block's own.
"""

import threading
from typing import Any, NamedTuple

import torch
import torch.nn as nn
from torch import Tensor

from mmstepnet.torch_version import can_change_modules, run_when_compiled

from .generated import Generated, generated_class
from .residual import ResidualStep


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
            return (*args[:key], t, *args[key + 1:]), last
        return type(last)((*last[:key], t, *last[key + 1:])) if isinstance(
            last, (tuple, list)) else t


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

    def to_maps(self, t: Tensor) -> Tensor:
        """View a state as maps, (N, C, H, W)."""
        t = t.movedim((self.batch, self.channels), (0, 1))
        return t.flatten(3) if self.dims > 4 else t[
            (..., *[None] * (4 - self.dims))]

    def from_maps(self, step: Tensor, f: Tensor) -> Tensor:
        """View a step that was chosen for such maps as one for a branch."""
        if self.dims != 4:
            places = [size for axis, size in enumerate(f.shape)
                      if axis not in (self.batch, self.channels)]
            step = step.reshape(*step.shape[:2], *(
                places if step.shape[2:].numel() > 1 else [1] * len(places)))
        return step.movedim((0, 1), (self.batch, self.channels))


class SteppedBlock(Generated):
    """A block that takes steps where its branches end.

    It computes what its host's class says. But compilers would run code that
    they wrote for a block without steps: they look at classes, not at hooks.
    """


class BranchStep(ResidualStep):
    r"""Scales a branch by the step that an attention chooses.

    Of :math:`x_{t+1} = x_t + f(x_t) \otimes \Delta t` it computes
    :math:`f(x_t) \otimes \Delta t`; the block adds.

    Args:
        attention (nn.Module): See :class:`ResidualStep`.
        place (Place): Where it stands in its block.
    """

    def __init__(self, attention: nn.Module, place: Place):
        super().__init__(attention)
        self.place = place
        self._pass = threading.local()  # one model may run in several threads

    def __getstate__(self) -> dict:
        """Leave what belongs to a pass out of copies."""
        state = super().__getstate__()
        return {key: state[key] for key in state if key != '_pass'}

    def __setstate__(self, state: dict) -> None:
        """Begin without a pass."""
        super().__setstate__(state)
        self._pass = threading.local()

    def forward(self, x: Tensor, f: Tensor) -> Tensor:
        """Scale the branch.

        Args:
            x (Tensor): State x_t, with the axes of the place.
            f (Tensor): Branch f(x_t), likewise.

        Returns:
            Tensor: f ⊗ Δt, of the same shape.
        """
        place = self.place
        step = self.choose(place.to_maps(x), place.to_maps(f))
        scaled = f
        if step is not None:
            step = place.from_maps(step, f)
            scaled = f * step
        self.report(x, f, step, scaled)
        return scaled

    def _scale(self, f: Tensor) -> Tensor:
        """Scale the branch of the state that was kept.

        Raises:
            RuntimeError: No state was kept in this pass.
        """
        x, self._pass.state = getattr(self._pass, 'state', None), None
        if x is None:
            place = self.place
            raise RuntimeError(
                f'{place.name} has a branch, from '
                f'{place.branch.module!r}, but no state, from '
                f'{place.state.module or "the block"!r}: checkpoint the whole '
                f'block, not a part of it, and let torch.fx trace both of '
                f'these modules or neither')
        self._pass.count = getattr(self._pass, 'count', 0) + 1
        # A wrapper that stands in the block may hold another copy (PEFT).
        return getattr(self._pass, 'standing', self)(x, f)

    def attach(self, block: nn.Module) -> None:
        """Become a child of a block, and hook it."""
        if not isinstance(block, Generated):
            stepped: Any = generated_class(SteppedBlock, type(block))
            block.__class__ = stepped
        block.add_module(self.place.name, self)
        block.register_forward_pre_hook(self._begin)
        self._place_hooks(block)
        block.register_forward_hook(self._end, with_kwargs=True)

    def detach(self, block: nn.Module) -> None:
        """Leave a block, and take all hooks off."""
        if isinstance(block, SteppedBlock):
            block.__class__ = block.host
        delattr(block, self.place.name)
        self._take_off(block, self._begin, self._end, self._keep,
                       self._exchange)

    @run_when_compiled
    def _place_hooks(self, block: nn.Module) -> None:
        """Hook whoever stands at the spots now.

        Layers are wrapped (LoRA), converted (SyncBN), fused and exchanged.

        Raises:
            RuntimeError: Nobody does: the network was changed.
        """
        for spot, hook in ((self.place.state, self._keep),
                           (self.place.branch, self._exchange)):
            try:
                module = block.get_submodule(spot.module)
            except AttributeError as error:
                raise RuntimeError(
                    f'the module {spot.module}, at which {self.place.name} '
                    f'of {type(block).__name__} stands, is gone; call '
                    f'remove_steps before the network is changed in this way'
                ) from error
            hooks = (module._forward_hooks if spot.returned
                     else module._forward_pre_hooks)
            if hook in hooks.values():
                continue
            self._take_off(block, hook)
            if spot.returned:
                module.register_forward_hook(hook)
            else:
                module.register_forward_pre_hook(hook, with_kwargs=True)

    def _take_off(self, block: nn.Module, *meant: Any) -> None:
        """Remove hooks of this step from the modules of a block."""
        for module in block.modules():
            for hooks in (module._forward_pre_hooks, module._forward_hooks):
                for key, hook in list(hooks.items()):
                    if hook in meant:
                        del hooks[key]
                        module._forward_pre_hooks_with_kwargs.pop(key, None)
                        module._forward_hooks_with_kwargs.pop(key, None)

    def _begin(self, block: nn.Module, args: tuple) -> None:
        if getattr(block, '_is_replica', False):
            raise RuntimeError(
                f'{self.place.name} is in a replica of nn.DataParallel, whose '
                f'gates would learn nothing; take DistributedDataParallel')
        self._pass.state, self._pass.count = None, 0
        self._pass.standing = block._modules[self.place.name]
        self._pass.calls = [0, 0]
        if can_change_modules():
            self._place_hooks(block)

    def _end(self, block: nn.Module, args: tuple, kwargs: dict,
             out: Any) -> None:
        """See that the step ran once: an output at Δt = 1 does not show it."""
        first = out[0] if isinstance(out, (tuple, list)) and out else out
        if self._pass.count == 1 or any(
                first is t for t in (*args, *kwargs.values())):
            return
        if isinstance(first, torch.fx.Proxy) and self._pass.state is None:
            return  # both spots are leaves, which run when the graph does
        raise RuntimeError(
            f'{self.place.name} of {type(block).__name__} ran '
            f'{self._pass.count} times in one pass, between '
            f'{self.place.state.module or "the block"!r} and '
            f'{self.place.branch.module!r}; the block goes another way than '
            f'with the example of insert_steps, so remove the steps and '
            f'insert them anew')

    def _is_due(self, spot: Spot, which: int) -> bool:
        """Whether this call of a spot's module is the one that is meant."""
        calls = self._pass.__dict__.setdefault('calls', [0, 0])
        calls[which] += 1
        return (calls[which] - 1) % spot.calls == spot.call

    def _keep(self, module: nn.Module, args: tuple, last: Any = None) -> None:
        """Keep the state, where it is given or returned."""
        spot = self.place.state
        if self._is_due(spot, 0):
            self._pass.state = spot.take(args, last)

    def _exchange(self, module: nn.Module, args: tuple, last: Any) -> Any:
        """Put the scaled branch in the place of the branch."""
        spot = self.place.branch
        if not self._is_due(spot, 1):
            return None  # nothing is changed
        return spot.put(args, last, self._scale(spot.take(args, last)))
