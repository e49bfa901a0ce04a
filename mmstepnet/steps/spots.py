"""Where the blocks of a model take their steps, found by running it.

The trace of a pass says which module was given, and which returned, each
tensor: a step needs one of these spots for its state and one for its branch.
"""

from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from itertools import chain, product
from typing import Any, NamedTuple

import torch.nn as nn

from mmstepnet.tracing import Arrangement, Finder, Sum
from mmstepnet.tracing.trace import Event, Trace

from .branch import Place, Spot
from .examples import call_of, guess_inputs, on_meta

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
    """What a trace shows around a step.

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


def _surroundings(trace: Trace, found: Sum) -> Surroundings | None:
    """Of a step that was added; None of one that a module reported."""
    added = trace.additions.get(found)
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


def find_places(
    model: nn.Module,
    example: object,
    layout: str | None = None,
    outermost: bool = True,
) -> tuple[dict[str, tuple[Place, ...]], list[str], str]:
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

    Returns:
        tuple: Places by the blocks' names; sums that can take no step, each
        with the reason; and what was seen, for an error.

    Raises:
        ValueError: The model does not run on the example.
    """
    finders = run_on(example, model, _follow, 2, 3, outermost=outermost)
    found = [Arrangement(finder) for finder in finders]
    tables = [_holders(arrangement) for arrangement in found]
    places: dict[str, tuple[Place, ...]] = {}
    refused = []
    for name, sums in tables[0].items():
        others = tables[1].get(name, ())
        names = NAMES.get(len(sums)) or [f'step_{k}' for k in range(len(sums))]
        for step, *pair in zip(names, sums, others, strict=True):
            try:
                if any(other.startswith(f'{name}.') for other in tables[0]):
                    raise RefusedError('holds other blocks, which take steps')
                place = _place(finders, name, step, pair, layout)
                places[name] = (*places.get(name, ()), place)
            except RefusedError as error:
                refused.append(f'{name} {error}')
    return places, [*dict.fromkeys(refused)], found[0].explain()


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
    failed: Exception = ValueError(
        'nothing can be guessed for a model of its class'
    )
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
    raise ValueError(
        f'{type(model).__name__} does not run on the example that its blocks '
        f'are to be found with ({type(failed).__name__}: {failed}); give '
        f'example= that it takes'
    ) from failed


def _follow(model: nn.Module, args: tuple, kwargs: dict) -> Finder:
    """Trace a pass in evaluation mode."""
    finder = Finder(model, traces=True)
    with finder.following():
        model(*args, **kwargs)
    return finder


def _holders(arrangement: Arrangement) -> dict[str, list[Sum]]:
    """Steps by the names of the modules that are to hold them.

    These are the blocks; of those that are a sequence, which would call a
    step as a layer, the layers.
    """
    table: dict[str, list[Sum]] = defaultdict(list)
    for name, sums in arrangement.by_block().items():
        for found in sums:
            holder, owner = name, found.owner.name
            while holder != owner and isinstance(
                arrangement.modules[holder], nn.Sequential
            ):
                prefix = f'{holder}.'.lstrip('.')
                holder = prefix + owner.removeprefix(prefix).split('.')[0]
            table[holder].append(found)
    return table


def _place(
    finders: list[Finder],
    block: str,
    name: str,
    sums: list[Sum],
    layout: str | None,
) -> Place:
    finder, found = finders[0], sums[0]
    trace = finder.trace
    seen, module = _surroundings(trace, found), finder.modules[block]
    if trace.calls[module] != 1:
        raise RefusedError(f'runs {trace.calls[module]} times in one pass')
    if isinstance(module, nn.Sequential):
        raise RefusedError('is a sequence, which would call its step')
    if seen is None or found.branches > 1:
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
        len(found.shape),
        batch,
        channels,
        found.shape[channels],
    )


def _spots(finder: Finder, block: str, seen: Surroundings) -> list[Spot]:
    """The spots of state and branch that others likeliest leave alone.

    First come those outside of children with weights, then modules without
    weights, which are hooked where they are given the branch, containers, and
    layers.
    """
    own = f'{block}.'.lstrip('.')

    def rank(event: Event) -> tuple:
        parts = event.name.removeprefix(own).split('.')
        is_inside = any(
            finder.modules[own + '.'.join(parts[:k])] in finder.learns
            for k in range(1, len(parts))
        )
        kind = (
            0
            if event.module not in finder.learns
            else (1 if event.module._modules else 2)
        )
        return is_inside, kind, len(parts), event.time

    ends = next(
        filter(
            None,
            (
                _ends(
                    [
                        e
                        for e in events
                        if e.name.startswith(own) and e.name != block
                    ],
                    finder.learns,
                )
                for events in seen.branch
            ),
        ),
        [],
    )
    if not ends:
        raise RefusedError(
            'has a branch that none of its modules returns; let it end in an '
            'nn.Identity()'
        )
    end = min(ends, key=rank)
    states = [
        e
        for e in seen.state
        if e.time < end.time
        and (not e.returned if e.name == block else e.name.startswith(own))
    ]
    if not states:
        raise RefusedError('has a state that none of its modules is given')
    # A block that checkpoints its own forward calls its parts anew, and its
    # own hooks not.
    state = min(states, key=lambda e: (0.5,) if e.name == block else rank(e))
    return [
        Spot(
            e.name.removeprefix(own) if e.name != block else '',
            e.returned,
            e.key,
            e.call,
            finder.trace.calls[e.module],
        )
        for e in (state, end)
    ]


def _ends(branch: list[Event], learns: set[nn.Module]) -> list[Event]:
    """Where a branch can be taken: what modules return, others are given.

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
    shapes = [s.shape for s in sums]
    if len(shapes[0]) != 3:
        return False
    tokens = shapes[0][3 - batch - channels]
    return any(
        len(a) > 1
        and (a[-1] == tokens or a[-2:] == (tokens, 1))
        and a != shapes[0]
        and a != b
        and len(a) == len(b)
        for a, b in zip(*(f.trace.shapes[block] for f in finders))
    )


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
    grows = [
        axis for axis, (m, n) in enumerate(zip(shape, sums[1].shape)) if m != n
    ]
    given, other = (finder.trace.shapes[''] for finder in finders)
    if (
        len(grows) > 1
        or not grows
        and (len(shape) == 3 or given != other)
        or (grows == [0] and shape in finders[0].wrong_shapes)
    ):
        raise RefusedError(
            f'has states {shape} whose axis of samples is not clear; give '
            f"layout=, such as 'NLC' or 'LNC'"
        )
    batch = grows[0] if grows else 0
    for event in (*seen.state, *chain(*seen.branch)):
        module = event.module
        if isinstance(module, CHANNELS_FIRST) and batch != 1:
            return batch, 1
        if isinstance(module, CHANNELS_LAST) or (
            type(module) is nn.LayerNorm and len(module.normalized_shape) == 1
        ):
            return batch, len(shape) - 1
    near = [
        p
        for event in seen.state
        for p in event.module.parameters(recurse=False)
    ]
    for weights in (near, [*block.parameters()]):
        widths = {len(p) for p in weights if p.dim() == 1}
        found = [
            axis
            for axis, size in enumerate(shape)
            if axis != batch and size in widths
        ]
        if len(found) == 1:
            return batch, found[0]
    raise RefusedError(
        f'has states {shape} whose axis of channels is not clear; give '
        f"layout=, such as 'NCHW', 'NHWC', 'NLC' or 'LNC'"
    )
