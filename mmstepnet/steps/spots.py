"""Where the blocks of a model take their steps, found by running it.

The trace of a pass says which module was given, and which returned, each
tensor: a step needs one of these spots for its state and one for its branch.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from itertools import chain, product
from typing import Any, NamedTuple

import torch.nn as nn
from torch import Tensor

from mmstepnet.generated import Generated
from mmstepnet.tracing import Arrangement, Finder, Sum
from mmstepnet.tracing.trace import Event, Trace

from .branch import Place, Spot
from .examples import NOT_RUN, call_of, guess_inputs, on_meta

NAMES = {
    1: ('step',),
    2: ('attn_step', 'mlp_step'),
    3: ('attn_step', 'cross_step', 'mlp_step'),
}

CHANNELS_FIRST = (
    nn.modules.conv._ConvNd,
    nn.modules.batchnorm._NormBase,
    nn.GroupNorm,
)
CHANNELS_LAST = nn.Linear, nn.MultiheadAttention


class RefusedError(ValueError):
    """A sum can take no step; says why."""


class Surroundings(NamedTuple):
    """Events around a step, of a trace.

    Attributes:
        state (list[Event]): Who was given, or returned, the state.
        branch (list[list[Event]]): Likewise of the branch, and of what it
            is a product of with numbers and weights.
        is_text (bool): Whether the state was looked up in an embedding by
            integers that the model was given.
    """

    state: list[Event]
    branch: list[list[Event]]
    is_text: bool


def _surroundings(trace: Trace, step: Sum) -> Surroundings | None:
    """Events around a step; None where a module reported the step."""
    added = trace.additions.get(step)
    if added is None:
        return None
    return Surroundings(
        trace.events_of(added.state, added.time),
        [
            trace.events_of(branch, added.time)
            for branch in trace.multiples(added.branch)
        ],
        added.is_text,
    )


class FoundPlaces(NamedTuple):
    """Places of a model's steps.

    Attributes:
        places (dict): Places of the steps by the blocks' names.
        refused (list[str]): Blocks that take no step, each with the reason.
        seen (str): What was seen, for an error.
    """

    places: dict[str, tuple[Place, ...]]
    refused: list[str]
    seen: str


def find_places(
    model: nn.Module,
    example: object,
    layout: str | None = None,
    outermost: bool = True,
) -> FoundPlaces:
    """Find the blocks of a model and where each takes its steps.

    The model runs in evaluation mode with two and with three samples, which
    shows the axis of the samples: on the meta device, where that costs
    nothing, or really, where it cannot.

    Args:
        model (nn.Module): The model.
        example (Tensor | tuple | dict, optional): What it is called with.
            None is what can be guessed.
        layout (str, optional): Axes of the states, such as ``'NLC'``, where
            they cannot be told.
        outermost (bool): See :func:`guess_inputs`. Defaults to True.

    Raises:
        ValueError: The model does not run on the example.
    """
    finders = run_on(example, model, _follow, 2, 3, outermost=outermost)
    arrangements = [Arrangement(finder) for finder in finders]
    by_holder, others = map(_sums_by_holder, arrangements)
    places: dict[str, tuple[Place, ...]] = {}
    refused: dict[str, None] = {}  # each sentence once
    for block, sums in by_holder.items():
        names = NAMES.get(len(sums)) or [f'step_{k}' for k in range(len(sums))]
        holds_others = any(name.startswith(f'{block}.') for name in by_holder)
        for name, *pair in zip(
            names, sums, others.get(block, ()), strict=True
        ):
            try:
                if holds_others:
                    raise RefusedError('holds other blocks, which take steps')
                place = _place(finders, block, name, pair, layout)
                places[block] = (*places.get(block, ()), place)
            except RefusedError as error:
                refused[f'{block} {error}'] = None
    for child in arrangements[0].without:
        if not isinstance(child.call.module, Generated):  # a removed block
            refused[f'{child.name} shows no addition to its state'] = None
    return FoundPlaces(places, list(refused), arrangements[0].explain())


def run_on(
    example: object,
    model: nn.Module,
    follow: Callable[[nn.Module, tuple, dict], Any],
    *samples: int | None,
    outermost: bool = True,
) -> list:
    """Follow passes on the meta device or, where the model cannot, really.

    Args:
        example (object): What the model is called with. None is what can be
            guessed.
        model (nn.Module): The model.
        follow (Callable): ``follow(model, args, kwargs)`` makes a pass.
        *samples (int): The numbers of samples to call it with; where the
            model takes no other number, as many times as it is.
        outermost (bool): See :func:`guess_inputs`. Defaults to True.

    Raises:
        ValueError: The model does not run on the example.
    """
    failed: Exception | None = None
    for given, (device, sizes) in product(
        guess_inputs(model, outermost) if example is None else (example,),
        (('meta', samples), (None, samples), (None, [None] * len(samples))),
    ):
        try:
            with on_meta(model) if device else nullcontext():
                return [
                    follow(model, *call_of(given, size, device))
                    for size in sizes
                ]
        except Exception as error:
            failed = error
    kind = type(model).__name__
    if example is None:
        raise ValueError(f'{kind}: {NOT_RUN}') from failed
    raise ValueError(
        f'{kind} does not run on the example that its blocks are to be found '
        f'with ({type(failed).__name__}: {failed}); give example= that it '
        f'takes'
    ) from failed


def _follow(model: nn.Module, args: tuple, kwargs: dict) -> Finder:
    """Trace a pass in evaluation mode."""
    finder = Finder(model, traces=True)
    with finder.following():
        model(*args, **kwargs)
    return finder


def _sums_by_holder(arrangement: Arrangement) -> dict[str, list[Sum]]:
    """Steps by the names of the modules that are to hold them.

    These are the blocks; of those that are a sequence, which would call a
    step as a layer, the layers.
    """
    table: dict[str, list[Sum]] = defaultdict(list)
    for name, sums in arrangement.by_block().items():
        for step in sums:
            holder = name
            owner = step.owner.name
            while holder != owner and isinstance(
                arrangement.modules[holder], nn.Sequential
            ):
                prefix = f'{holder}.'.lstrip('.')
                holder = prefix + owner.removeprefix(prefix).split('.')[0]
            table[holder].append(step)
    return table


def _place(
    finders: list[Finder],
    block: str,
    name: str,
    sums: list[Sum],
    layout: str | None,
) -> Place:
    finder = finders[0]
    step = sums[0]
    trace = finder.trace
    module = finder.modules[block]
    seen = _surroundings(trace, step)
    if trace.calls[module] != 1:
        raise RefusedError(f'runs {trace.calls[module]} times in one pass')
    if isinstance(module, nn.Sequential):
        raise RefusedError('is a sequence, which would call its step')
    if seen is None or step.branches > 1:
        raise RefusedError('adds several branches to one state')
    if hasattr(module, name):
        raise RefusedError(f'has an attribute {name!r} already')
    batch, channels = _axes(finders, sums, seen, module, layout)
    if seen.is_text or _is_masked(finders, block, sums, batch, channels):
        raise RefusedError(
            'has tokens of a text or beside padding, over which a gate would '
            'pool: it can be measured, but takes no steps'
        )
    state, branch = _spots(finder, block, seen)
    return Place(
        name,
        state,
        branch,
        len(step.shape),
        batch,
        channels,
        step.shape[channels],
    )


def _spots(finder: Finder, block: str, seen: Surroundings) -> list[Spot]:
    """The spots of state and branch that other hooks leave alone.

    First come those outside of children with weights, then modules without
    weights, which are hooked where they are given the branch, containers, and
    layers.
    """
    own = f'{block}.'.lstrip('.')
    trace = finder.trace
    learns = finder.learns

    def rank(event: Event) -> tuple:
        parts = event.name.removeprefix(own).split('.')
        parents = [own + '.'.join(parts[:k]) for k in range(1, len(parts))]
        level = 0
        if event.name == block:
            # A block that checkpoints its own forward calls its parts anew,
            # and its own hooks not.
            level = 1
        elif any(finder.modules[parent] in learns for parent in parents):
            level = 2
        kind = 0
        if event.module in learns:
            kind = 1 if event.module._modules else 2
        return level, kind, len(parts), event.time

    ends: list[Event] = []
    for events in seen.branch:
        inside = [
            e for e in events if e.name.startswith(own) and e.name != block
        ]
        ends = ends or _ends(inside, learns)
    if not ends:
        raise RefusedError(
            'has a branch that none of its modules returns; let it end in an '
            'nn.Identity()'
        )
    end = min(ends, key=rank)
    starts = []
    for event in seen.state:
        is_own = event.name == block and not event.returned
        is_inside = event.name != block and event.name.startswith(own)
        if event.time < end.time and (is_own or is_inside):
            starts.append(event)
    if not starts:
        raise RefusedError('has a state that none of its modules is given')
    spots = []
    for event in (min(starts, key=rank), end):
        name = '' if event.name == block else event.name.removeprefix(own)
        calls = trace.calls[event.module]
        spots.append(Spot(name, event.returned, event.key, event.call, calls))
    return spots


def _ends(branch: list[Event], learns: set[nn.Module]) -> list[Event]:
    """Events at which a branch can be taken: returned, or given.

    These have no weights and return what they are given, as stochastic depth.
    """
    returning = {e.module for e in branch if e.returned}
    passing = {
        e.module
        for e in branch
        if not e.returned and e.module in returning and e.module not in learns
    }
    return [e for e in branch if e.returned != (e.module in passing)]


def _is_masked(
    finders: list[Finder],
    block: str,
    sums: list[Sum],
    batch: int,
    channels: int,
) -> bool:
    """Whether a block is given a mask of each sample's tokens."""
    state = sums[0].shape
    if len(state) != 3:
        return False
    tokens = state[3 - batch - channels]
    given, other_given = (finder.trace.shapes[block] for finder in finders)
    for shape, other in zip(given, other_given):
        ends_in_tokens = shape[-1:] == (tokens,) or shape[-2:] == (tokens, 1)
        grows = shape != other and len(shape) == len(other)
        if len(shape) > 1 and ends_in_tokens and grows and shape != state:
            return True
    return False


def _axes(
    finders: list[Finder],
    sums: list[Sum],
    seen: Surroundings,
    block: nn.Module,
    layout: str | None,
) -> tuple[int, int]:
    """Axes of the samples and of the channels of a state."""
    shape = sums[0].shape
    if layout is not None and len(layout) == len(shape):
        return layout.index('N'), layout.index('C')
    batch = _samples_axis(finders, sums)
    for rule in CHANNEL_RULES:
        channels = rule(State(shape, batch, seen, block))
        if channels is not None:
            return batch, channels
    raise RefusedError(
        f'has states {shape} whose axis of channels is not clear; give '
        f"layout=, such as 'NCHW', 'NHWC', 'NLC' or 'LNC'"
    )


def _samples_axis(finders: list[Finder], sums: list[Sum]) -> int:
    """The axis that grows with the number of samples."""
    shape, other_shape = (step.shape for step in sums)
    grows = [
        axis for axis, (m, n) in enumerate(zip(shape, other_shape)) if m != n
    ]
    given, other_given = (finder.trace.shapes[''] for finder in finders)
    stays = not grows and (len(shape) == 3 or given != other_given)
    is_wrong = grows == [0] and shape in finders[0].wrong_shapes
    if len(grows) > 1 or stays or is_wrong:
        raise RefusedError(
            f'has states {shape} whose axis of samples is not clear; give '
            f"layout=, such as 'NLC' or 'LNC'"
        )
    return grows[0] if grows else 0


class State(NamedTuple):
    """A state whose axis of channels is looked for.

    Attributes:
        shape (tuple): Its shape.
        batch (int): Its axis of samples.
        seen (Surroundings): Who was given it, and its branch.
        block (nn.Module): The block that adds.
    """

    shape: tuple[int, ...]
    batch: int
    seen: Surroundings
    block: nn.Module


def _axis_of_layers(state: State) -> int | None:
    """Layers of PyTorch say it, that were given the state or its branch."""
    for event in chain(state.seen.state, *state.seen.branch):
        module = event.module
        if isinstance(module, CHANNELS_FIRST) and state.batch != 1:
            return 1
        if isinstance(module, CHANNELS_LAST) or (
            type(module) is nn.LayerNorm and len(module.normalized_shape) == 1
        ):
            return len(state.shape) - 1
    return None


def _axis_of_near_weights(state: State) -> int | None:
    """One axis is as long as a vector of a module that was given the state."""
    weights: list[Tensor] = []
    for event in state.seen.state:
        weights += event.module.parameters(recurse=False)
    return _axis_of_width(state, weights)


def _axis_of_weights(state: State) -> int | None:
    """One axis is as long as a vector of weights in the block."""
    return _axis_of_width(state, state.block.parameters())


def _axis_of_width(state: State, weights: Iterable[Tensor]) -> int | None:
    widths = {len(p) for p in weights if p.dim() == 1}
    axes = []
    for axis, size in enumerate(state.shape):
        if axis != state.batch and size in widths:
            axes.append(axis)
    return axes[0] if len(axes) == 1 else None


CHANNEL_RULES = (
    # ResNet: a convolution (N, C, H, W). ViT: nn.LayerNorm (N, L, C).
    _axis_of_layers,
    # A norm of one's own, in a block that also mixes tokens by weights.
    _axis_of_near_weights,
    # GCViT: a norm of timm's own class. NFNet: an activation.
    _axis_of_weights,
)
"""Rules for the axis of channels; the surest come first."""
