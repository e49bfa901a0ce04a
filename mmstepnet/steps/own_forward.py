"""Blocks whose own ``forward`` takes steps, without a description of it.

The block's ``forward`` runs as it is, under a mode of PyTorch that is shown
every function that is called with tensors. One of these is the addition of
the state x_t and the branch f(x_t); in its place the mode takes the
:class:`ResidualStep`. All else, the activation behind it or a second addition,
stays with the block. Which addition it is was found by running
(:mod:`.places`) and is known by its number among those that the block
executes. That each step ran, and as many additions as expected, is checked at
every exit from the block: where Δt = 1, a step that did not run shows nowhere.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn as nn
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from mmstepnet.torch_version import is_compiling, saved_tensors_hooks

from .foreign_step import ForeignStep
from .generated import generated_class
from .padding import UnknownMaskError, kept, masks_of
from .residual import ResidualStep
from .step_block import StepBlock, check_forward, put_steps


def _added(x: Tensor, other: Tensor, alpha: float = 1) -> Tensor:
    return other if alpha == 1 else alpha * other


BRANCHES: dict[str, Callable[..., Tensor]] = {
    'add': _added,
    'sub': lambda x, other, alpha=1: -alpha * other,
    'lerp': lambda x, end, weight: (end - x) * weight,
    'addcmul': lambda x, tensor1, tensor2, value=1: value * tensor1 * tensor2,
}
"""What is added to the first argument, by the name of the function."""

ADDITIONS = {
    getattr(owner, spelling): name
    for owner in (torch, torch.Tensor) for name in BRANCHES
    for spelling in (name, f'{name}_', f'__{name}__')
    if hasattr(owner, spelling)
}
"""Functions that add, and their names in :data:`BRANCHES`."""

PRODUCTS = {
    getattr(owner, spelling): name
    for owner in (torch, torch.Tensor) for name in ('mul', 'div')
    for spelling in (name, f'{name}_', f'__{name}__', '__truediv__')
    if hasattr(owner, spelling) and (spelling != '__truediv__'
                                     or name == 'div')
}
"""Functions that stochastic depth is made of."""

WRITING = {getattr(torch.Tensor, f'{name}_') for name in BRANCHES}
"""Those that write the sum to their first argument; ``+=`` is one."""


OPERANDS = ('input', 'other', 'end', 'weight', 'tensor1', 'tensor2')
"""Names of what they are given, in the order of each signature."""


def _in_order(args: tuple, kwargs: dict) -> tuple:
    """Operands of an addition, those that were given by name behind."""
    return (*args, *(kwargs[name] for name in OPERANDS if name in kwargs))


def addition(func: Callable, args: tuple,
             kwargs: dict) -> tuple[Tensor, Tensor] | None:
    """Two tensors that a function adds, or None if it adds none."""
    if func not in ADDITIONS:
        return None
    values = _in_order(args, kwargs)
    if len(values) < 2 or 'out' in kwargs:  # a step returns a new tensor
        return None
    a, b = values[:2]
    if (isinstance(a, Tensor) and isinstance(b, Tensor)
            and a.is_floating_point() and b.is_floating_point()):
        return a, b
    return None


@dataclass(frozen=True)
class Place:
    """Where a block takes a step.

    Attributes:
        name (str): Attribute of the block that holds the step.
        ordinals (tuple[int, ...]): Number of the addition among those of two
            tensors that count, see :class:`Plan`, in the block and in its
            children. Several where the branches of one step are added one by
            one.
        state (tuple[int, ...]): For each, which operand is the state.
        source (int, optional): The state is the result of the block's step
            with this number, or, -1, its first argument; checked each time.
            None: something that was computed from it, as a norm's output.
        batch (int): Axis of the samples.
        channels (int): Axis of the channels.
        width (int): Number of channels.
        dims (int): Number of dimensions of the state.
        writes_back (bool): Whether the sum must be written to the first
            operand, which is used again: ``x.add_(f)`` as a statement, or
            ``x += f`` where somebody else has x.
        dropped (bool): Whether the block applies stochastic depth to the
            branch. The gate sees the branch before that.
        tokens_of_map (bool): Whether the state are the tokens of a map whose
            (H, W) stands among what the block is given.
    """

    name: str
    ordinals: tuple[int, ...]
    state: tuple[int, ...]
    source: int | None
    batch: int
    channels: int
    width: int
    dims: int
    writes_back: bool
    dropped: bool = False
    tokens_of_map: bool = False

    @property
    def has_map(self) -> bool:
        """Whether the state is a map, (N, C, H, W) or (N, H, W, C)."""
        return self.dims == 4 or self.tokens_of_map

    def to_maps(self, t: Tensor, given: Iterable = ()) -> Tensor:
        """See a state as (N, C, H, W)."""
        if (self.batch, self.channels) != (0, 1):
            t = t.movedim((self.batch, self.channels), (0, 1))
        if self.tokens_of_map and t.shape[2] > 1:
            shape: Any = map_shape(given, t.shape[2])
            return t.unflatten(2, shape)
        if self.dims > 4:
            return t.flatten(3)
        return t[(..., *[None] * (4 - self.dims))] if self.dims < 4 else t

    def from_maps(self, t: Tensor, like: Tensor) -> Tensor:
        """See what :meth:`to_maps` made of a state as one again."""
        if self.dims != 4:
            places = [size for axis, size in enumerate(like.shape)
                      if axis not in (self.batch, self.channels)]
            t = t.reshape(*t.shape[:2], *places)
        if (self.batch, self.channels) != (0, 1):
            t = t.movedim((0, 1), (self.batch, self.channels))
        return t


def map_shape(given: Iterable, tokens: int) -> tuple[int, int] | None:
    """The first pair of numbers, (H, W), whose product is that of tokens."""
    return next((tuple(v) for v in given if isinstance(v, (tuple, list))
                 and len(v) == 2
                 and all(isinstance(n, (int, torch.SymInt)) for n in v)
                 and v[0] * v[1] == tokens), None)


@dataclass(frozen=True)
class Plan:
    """The steps of a block in one mode, training or evaluation.

    Attributes:
        block (str): Name of the block, for errors.
        additions (int): How many additions of two tensors it executes; of
            those that count. Those of a mask that it is given do not.
        by_state (bool): Whether an addition counts only if it adds to the
            block's first argument, to what a step returned, or to a view of
            these. Others may then differ from call to call, as those of
            windows that are shifted or not. It needs steps that add to these
            tensors themselves, and a block that never adds to a view of
            them: a compiler cannot tell views.
        places (tuple[Place, ...]): Its steps, in their order.
    """

    block: str
    additions: int
    by_state: bool
    places: tuple[Place, ...]


class BlockRun:
    """One run of a block: which of its steps were taken.

    Args:
        block (nn.Module): The block.
        plan (Plan): Its plan.
        given (tuple): Its arguments.
        masks (dict[str, Tensor]): Those of them that are masks.
    """

    def __init__(self, block: nn.Module, plan: Plan, given: tuple,
                 masks: dict[str, Tensor]):
        self.block, self.plan, self.given = block, plan, given
        self.masks = masks
        self.keep: Tensor | None = None
        self.seen, self.taken = 0, 0
        self.states = {-1: given[0] if given else None}
        # Tensors within a step.
        self.partial: Any = None
        self.identity: Any = None
        self.branch: Any = None
        self.products: list[tuple] = []
        self.drops = any(place.dropped for place in plan.places)
        self.entered = _surroundings()

    def add(self, func: Callable, operands: tuple[Tensor, Tensor],
            args: tuple, kwargs: dict) -> Tensor:
        """Add two tensors, or take the step that this addition is."""
        if adds_mask(operands, self.masks):
            return func(*args, **kwargs)
        if self.plan.by_state and not any(
                shares_memory(t, state) for t in operands
                for state in (*self.states.values(), self.partial)):
            return func(*args, **kwargs)
        ordinal, self.seen = self.seen, self.seen + 1
        place = None
        if self.taken < len(self.plan.places):
            place = self.plan.places[self.taken]
        if place is None or ordinal not in place.ordinals:
            return func(*args, **kwargs)
        part = place.ordinals.index(ordinal)
        x, f = _split(func, operands, args, kwargs, place.state[part])
        if part == 0:
            self._check(place, operands[place.state[0]])
            if func in WRITING and len(place.ordinals) > 1:
                # One of them is about to be overwritten by their sum.
                x, f = x.clone(), f.clone()
            self.identity, self.branch = x, f
        else:
            self.branch = self.branch + f
        if part < len(place.ordinals) - 1:
            self.partial = func(*args, **kwargs)
            return self.partial
        identity, branch = self.identity, self.branch
        if place.writes_back:  # what autograd keeps must not be written
            identity, branch = identity.clone(), branch.clone()
        step = getattr(self.block, place.name)
        factors: list[tuple] = []
        if place.dropped:
            branch, factors = self._before_drop(place, branch)

        def drop_path(residual: Tensor) -> Tensor:
            for name, factor in factors:
                residual = getattr(residual, name)(factor)
            return residual

        maps = place.to_maps(identity, self.given)
        keep = self._kept(maps) if self.masks and place.dims == 3 else None
        out = place.from_maps(
            step(maps, place.to_maps(branch, self.given),
                 drop_path=drop_path if factors else None, keep=keep), x)
        if func in WRITING:
            out = out.to(operands[0].dtype)
        if place.writes_back:
            out = operands[0].copy_(out)
        self.states[self.taken] = out
        self.taken += 1
        return out

    def _kept(self, maps: Tensor) -> Tensor | None:
        """Tokens of a state that no mask hides, (N, 1, H, W)."""
        if self.keep is None:
            try:
                self.keep = kept(self.masks, len(maps), maps[0, 0].numel())
            except UnknownMaskError as error:
                raise ValueError(
                    f'{self.plan.block} {error}. Give batches without '
                    f'padding, or leave the block out by blocks=') from None
        return self.keep.view(len(maps), 1, *maps.shape[2:])

    def multiply(self, func: Callable, args: tuple, kwargs: dict) -> Tensor:
        """Multiply, and remember what may be stochastic depth."""
        f, factor = args
        if not isinstance(f, Tensor) or isinstance(factor, Tensor) and (
                factor.dim() != f.dim() or factor.numel() != len(factor)
                or factor.requires_grad):
            return func(*args, **kwargs)
        before = f
        if func in (torch.Tensor.mul_, torch.Tensor.div_):
            before = f.clone()  # f is about to be overwritten
            self.products = [(before if out is f else out, *rest)
                             for out, *rest in self.products]
        out = func(*args, **kwargs)
        self.products.append((out, before, PRODUCTS[func], factor))
        return out

    def _before_drop(self, place: Place,
                     f: Tensor) -> tuple[Tensor, list[tuple]]:
        """Branch before stochastic depth, and what that multiplies it by.

        That is one number an image, and what the branch was divided by right
        before, the share of images that are kept.
        """
        factors = []
        for out, before, name, factor in reversed(self.products):
            if out is f and isinstance(factor, Tensor) and not factors:
                f, factors = before, [(name, place.to_maps(factor))]
            elif out is f and factors and name == 'div':
                f, factors = before, [(name, factor), *factors]
                break
        self.products.clear()
        return f, factors

    def _check(self, place: Place, x: Tensor) -> None:
        """Refuse another addition than the one that was found."""
        wanted = None if place.source is None else self.states[place.source]
        if place.source is not None and x is not wanted:
            raise RuntimeError(
                f'{self.plan.block}: addition {place.ordinals[0] + 1} of its '
                f'forward adds to another tensor than when {place.name} was '
                f'put in, so that this step would be taken elsewhere. '
                f'{_ANEW}')
        if not is_compiling() and _surroundings() != self.entered:
            raise RuntimeError(
                f'{self.plan.block} adds to its state within a checkpoint of '
                f'its own, which runs again where {place.name} cannot be '
                f'taken: gradients would be wrong. Switch it off in the block '
                f'(with_cp=False, use_checkpoint=False) and checkpoint the '
                f'whole block')

    def finish(self) -> None:
        """Check that all steps were taken.

        Raises:
            RuntimeError: One was not, or the block added more or less often
                than when they were put in.
        """
        if self.taken < len(self.plan.places) or (
                self.seen != self.plan.additions):
            raise RuntimeError(
                f'{self.plan.block}: {self.taken} of its '
                f'{len(self.plan.places)} steps were taken, and '
                f'{self.seen} additions of two tensors were seen where '
                f'{self.plan.additions} were expected: its forward went '
                f'another way than when the steps were put in. {_ANEW} '
                f'(torch.fx cannot trace such a block; torch.export can.)')


def shares_memory(t: Tensor, other: object) -> bool:
    """Whether a tensor is another, or a view of its memory.

    Of views a compiler and functorch cannot tell.
    """
    if t is other or not isinstance(other, Tensor) or is_compiling():
        return t is other
    try:
        return memory_of(t) == memory_of(other)
    except (NotImplementedError, RuntimeError):
        return False


def adds_mask(operands: Iterable[Tensor], masks: dict[str, Tensor]) -> bool:
    """Whether an addition is that of a mask, which not every batch has."""
    return any(shares_memory(t, mask)
               for t in operands for mask in masks.values())


def memory_of(t: Tensor) -> int:
    """A number for the memory of a tensor, as long as that lives."""
    return t.untyped_storage()._cdata


class TakeSteps(TorchFunctionMode):
    """Hands the additions of a block to its run."""

    def __init__(self, run: BlockRun):
        super().__init__()
        self.run = run

    def __torch_function__(self, func: Callable, types: tuple,
                           args: tuple = (),
                           kwargs: dict | None = None) -> object:
        kwargs = kwargs or {}
        operands = addition(func, args, kwargs)
        if operands is not None:
            return self.run.add(func, operands, args, kwargs)
        if self.run.drops and func in PRODUCTS and len(args) == 2:
            return self.run.multiply(func, args, kwargs)
        return func(*args, **kwargs)


_ANEW = ('Put them in with an example= that the model runs on as it does '
         'here, or leave the block out by blocks=')


def _surroundings() -> tuple:
    """What a checkpoint inside of a block changes."""
    if is_compiling():
        return ()
    return torch.is_grad_enabled(), saved_tensors_hooks()


def _split(func: Callable, operands: tuple[Tensor, Tensor], args: tuple,
           kwargs: dict, state: int) -> tuple[Tensor, Tensor]:
    """State and branch of an addition."""
    a, b = operands
    if state == 1:  # f + alpha x
        return _added(a, b, kwargs.get('alpha', 1)), a
    named = {k: v for k, v in kwargs.items() if k in ('alpha', 'value')}
    return a, BRANCHES[ADDITIONS[func]](*_in_order(args, kwargs), **named)


class OwnForwardBlock(StepBlock):
    """A block that takes its steps while its class's ``forward`` runs."""

    _plans: tuple[Plan, Plan]

    def __init_subclass__(cls, **kwargs) -> None:
        super().__init_subclass__(**kwargs)
        if hasattr(cls.host, '__iter__'):  # it runs all that are in it
            cls.__iter__ = _parts

    def forward(self, *args, **kwargs):
        """Run the block. Arguments and what it returns are the host's."""
        x = next(iter((*args, *kwargs.values())), None)
        if getattr(self, 'with_cp', False) and getattr(
                x, 'requires_grad', False):
            # What the host checkpoints within would run without steps again.
            inner = without_checkpoint(self)
            given = dict(vars(inner))
            out = checkpoint(
                inner._run, *args, use_reentrant=False, **kwargs)
            vars(self).update({  # what the forward has set
                name: value for name, value in vars(inner).items()
                if name not in given or given[name] is not value})
            return out
        return self._run(*args, **kwargs)

    def _run(self, *args, **kwargs):
        if any(t.is_nested for t in args if isinstance(t, Tensor)):
            raise ValueError(
                f'{self._plans[0].block} is given a nested tensor, which its '
                f'steps cannot pool. PyTorch makes one of a padding mask; '
                f'build nn.TransformerEncoder with enable_nested_tensor=False')
        masks = masks_of(self.host.forward, (self, *args), kwargs)
        run = BlockRun(self, self._plans[self.training],
                       (*args, *kwargs.values()), masks)
        with TakeSteps(run):
            out = self.host.forward(self, *args, **kwargs)
        run.finish()
        return out

    def take_steps(self) -> None:
        """Take the steps out, in place."""
        for place in self.__dict__.pop('_plans')[0].places:
            delattr(self, place.name)
        self.__class__ = self.host


def without_checkpoint(block: nn.Module) -> Any:
    """A block of all that the block holds, but for OpenMMLab's switch."""
    other = object.__new__(type(block))
    vars(other).update(vars(block), with_cp=False)
    return other


def _parts(block: OwnForwardBlock) -> Iterator[nn.Module]:
    """What a container holds beside its steps."""
    return (m for m in block.host.__iter__(block)
            if not isinstance(m, ResidualStep))


def check_names(name: str, block: nn.Module, plan: Plan) -> None:
    """Refuse a block that has something where its steps would go.

    Raises:
        ValueError: It has.
    """
    needed = [*(place.name for place in plan.places), '_plans', 'host',
              'take_steps']
    taken = [part for part in needed if hasattr(block, part)]
    if taken:
        raise ValueError(
            f'{name} ({type(block).__name__}) has an attribute {taken[0]}, '
            f'which a block with steps needs for its own; rename it, or leave '
            f'the block out by blocks=')


def put_planned_steps(block: Any, plans: tuple[Plan, Plan] | None,
                      attentions: Sequence[nn.Module]) -> None:
    """Put a ResidualStep for each attention into a block, in place.

    Args:
        block (nn.Module): The block.
        plans (tuple[Plan, Plan], optional): Its plans, for evaluation and
            training. None: it is one that has a description.
        attentions (Sequence): One for each step.
    """
    if plans is None:
        put_steps(block, attentions)
        return
    check_forward(block)
    block.__class__ = generated_class(OwnForwardBlock, type(block))
    block._plans = plans
    for place, attention in zip(plans[0].places, attentions):
        step = ForeignStep(attention)
        block.add_module(place.name, step.train(block.training))
