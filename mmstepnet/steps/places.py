"""Where the blocks of a model add to their states, found by running it."""

import logging
import re
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn as nn
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode

from .examples import call_of, made_up, on_meta
from .finding import (
    EAGER,
    FIRST,
    OUTSIDE,
    Arrangement,
    Finder,
    Run,
    Sum,
    explain,
    hooked,
    in_mode,
    tensors,
)
from .finding.operations import Operation
from .finding.wrappers import name_modules, unwrap
from .own_forward import (
    WRITING,
    Place,
    Plan,
    addition,
    adds_mask,
    map_shape,
    shares_memory,
)
from .padding import UnknownMaskError, kept, masks_of
from .step_block import StepBlock

LOGGER = logging.getLogger(__name__)

CHANNELS_FIRST = re.compile(r'^conv|^(batch|group|instance)_norm$')
CHANNELS_LAST = {'linear', 'layer_norm', 'rms_norm'}
"""Functions whose names say which axis of their tensors is the channels'."""

ALONE = 'no container'
TAKEN = None, FIRST, ALONE, OUTSIDE
"""Whatever the recorder leaves them out for, these may be steps."""

NAMES = {1: ('step', ), 2: ('attn_step', 'mlp_step'),
         3: ('attn_step', 'cross_step', 'mlp_step')}


@dataclass(eq=False)
class Addition:
    """One addition of two tensors, in one pass.

    Attributes:
        runs (list[Run]): The runs of modules that it happened in, but for
            those whose mask it adds.
        input_of (set[Run]): Those whose first argument one operand is.
        results_of (list[Addition]): Whose results the operands are.
        goes_on (bool): Whether the first operand is that result, or the
            second without a factor, and nobody has written to it.
        near (list[Run | Addition]): Those whose first argument or result
            shares memory with an operand.
        views (list): Memory, shape and strides of the operands.
        found (Sum, optional): The step that it is, or is a part of.
        state (int): Which operand is the state.
        dropped (bool): Whether stochastic depth was applied to the other.
        used_again (bool): Whether memory that the sum was written to is used
            later on other than by whoever was given the sum.
    """

    runs: list[Run]
    input_of: set[Run]
    results_of: 'list[Addition]'
    goes_on: bool = False
    near: list = field(default_factory=list)
    views: list[tuple] = field(default_factory=list)
    found: Sum | None = None
    state: int = 0
    dropped: bool = False
    used_again: bool = False
    out: Callable = field(default=lambda: None)
    version: int = 0

    @property
    def result_of(self) -> 'Addition | None':
        """The last of them."""
        return self.results_of[-1] if self.results_of else None


class _Watch(Finder):
    """A finder that tells of each operation which step it was."""

    last: Sum | None = None
    x: Any = None
    dropped = False

    def _begin(self, operation: Operation, owner: Run, x: Tensor, f: Tensor,
               *args):
        self.x = x
        base = self._base(self._state(x, owner), self.tags.get(f))
        self.dropped = self._factors(f, base)[2]
        return super()._begin(operation, owner, x, f, *args)

    def _conclude(self, found: Sum, out: Tensor) -> None:
        self.last = found if found.state else None
        super()._conclude(found, out)

    def _enter(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        super()._enter(module, args, kwargs)
        if not self.stack or self.stack[-1].module is not module:
            return
        run, given = self.stack[-1], (*args, *kwargs.values())
        if given and isinstance(given[0], Tensor):
            run.first = weakref.ref(given[0])
        run.masks = masks_of(type(module).forward, (module, *args), kwargs)
        run.pairs = [v for v in given if isinstance(v, (tuple, list))]


class _Follow(TorchFunctionMode):
    """Takes down the additions of a pass, as a block's mode will see them."""

    def __init__(self, finder: _Watch):
        super().__init__()
        self.finder = finder
        self.additions: list[Addition] = []
        self.replaced: dict[int, list[Addition]] = {}  # by their memory
        self.aliases: dict[int, list[int]] = {}  # of a copy's memory
        self.memory: list[StorageWeakRef] = []  # which no other gets
        self.channels: dict[tuple, set[int]] = {}  # by run, shape or view
        self.widths: dict[Run, set[int]] = {}

    def __torch_function__(self, func: Callable, types: tuple,
                           args: tuple = (),
                           kwargs: dict | None = None) -> object:
        kwargs = kwargs or {}
        finder = self.finder
        for t in tensors(args, kwargs) if self.replaced else ():
            for seen in self.replaced.get(t.untyped_storage()._cdata, ()):
                seen.used_again = True
        operands = addition(func, args, kwargs)
        if operands is None or not finder.stack:
            out = func(*args, **kwargs)
            self._see_channels(func, args, out)
            return out
        seen = Addition(
            [r for r in finder.stack if not adds_mask(operands, r.masks)],
            {r for r in finder.stack if r.first() is not None
             and any(t is r.first() for t in operands)},
            [a for a in self.additions
             if any(t is a.out() for t in operands)],
            near=[of for of, t in self._tensors() if any(
                shares_memory(operand, t) for operand in operands)],
            views=list(map(_view, operands)))
        if seen.result_of is not None:
            same = operands[0] is seen.result_of.out() or (
                kwargs.get('alpha', 1) == 1
                and operands[1] is seen.result_of.out())
            seen.goes_on = same and (
                _version(seen.result_of.out()) == seen.result_of.version)
        self.additions.append(seen)
        finder.last = None
        out = func(*args, **kwargs)
        if finder.last is not None:
            seen.found, seen.dropped = finder.last, finder.dropped
            views = [finder.tags.view(t) for t in (*operands, finder.x)]
            seen.state = int(views[2] == views[1] != views[0])
        if func in WRITING:
            out = self._stand_in(seen, out)
        seen.out, seen.version = weakref.ref(out), _version(out)
        return out

    def _tensors(self) -> Iterator[tuple[object, Tensor]]:
        """What running modules were given, and sums that are still there."""
        yield from ((run, run.first()) for run in self.finder.stack)
        yield from ((seen, seen.out()) for seen in self.additions)

    def _stand_in(self, seen: Addition, out: Tensor) -> Tensor:
        """A copy for whoever goes on with a sum; others have an alias."""
        copied = out.clone()
        here, there = (t.untyped_storage() for t in (out, copied))
        aliases = [here._cdata, *self.aliases.get(here._cdata, ())]
        for memory in aliases:
            self.replaced.setdefault(memory, []).append(seen)
        self.aliases[there._cdata] = aliases
        self.memory += map(StorageWeakRef, (here, there))
        return copied

    def _see_channels(self, func: Callable, args: tuple, out: object) -> None:
        name = getattr(func, '__name__', '')
        first = bool(CHANNELS_FIRST.search(name))
        if not first and name not in CHANNELS_LAST:
            return
        for t in (*args[:1], out):
            if isinstance(t, Tensor) and t.dim() > 1:
                axis = 1 if first else t.dim() - 1
                self.memory.append(StorageWeakRef(t.untyped_storage()))
                for run in self.finder.stack:
                    for key in (t.shape, _view(t)):
                        self.channels.setdefault((run, key), set()).add(axis)
                    self.widths.setdefault(run, set()).add(t.shape[axis])


def _view(t: Tensor) -> tuple:
    return t.untyped_storage()._cdata, t.shape, t.stride()


def _version(t: Tensor) -> int:
    return 0 if t.is_inference() else t._version


@dataclass
class Pass:
    """What one pass has shown."""

    watch: _Watch
    arrangement: Arrangement
    follow: _Follow
    samples: int


def find_plans(model: nn.Module, example: object,
               layout: str | None = None, prefix: str = ''
               ) -> tuple[dict[str, tuple[Plan, Plan]], list[str], str]:
    """Find the blocks of a model and where each takes its steps.

    The model runs twice: in evaluation and in training mode, with two and with
    three samples, so that what depends on either is seen. It does so on the
    meta device, where that costs nothing, in one mode where the model has not
    been in the other; where it cannot, both runs are real ones in evaluation
    mode.

    Args:
        model (nn.Module): The model.
        example (Tensor | tuple | dict): What it is called with.
        layout (str, optional): Axes of the states, such as ``'NLC'``, where
            they cannot be told.
        prefix (str): Of the blocks' names in messages. Defaults to ``''``.

    Returns:
        tuple: Plans for evaluation and training by the blocks' names; blocks
        that can take no steps, each with the reason; and what was seen, for
        an error.
    """
    try:
        passes = _run(model, example)
    except Exception as error:
        raise ValueError(
            f'{type(model).__name__} does not run on the example that its '
            f'blocks are to be found with ({type(error).__name__}: {error}); '
            f'give example= that it takes') from error
    plans, refused = {}, []
    tables = [steps_by_block(p.arrangement) for p in passes]
    for name in tables[0]:
        try:
            if name not in innermost(tables[0]):
                raise RefusedError('holds other blocks, which take steps')
            if name not in tables[1]:
                raise RefusedError('has no step in training mode')
            plans[name] = tuple(
                replace(plan, block=prefix + name) for plan in _plans(
                    name, passes, [t[name] for t in tables], layout))
        except RefusedError as error:
            refused.append(f'{prefix}{name} {error}')
    return plans, refused, explain(
        passes[0].watch, passes[0].arrangement.steps)


def find_in_parts(model: nn.Module, example: object,
                  layout: str | None = None, scope: str = ''
                  ) -> list[tuple]:
    """Find plans in a model, or in its parts where these say what they take.

    Args:
        model (nn.Module): The model.
        example (Tensor | tuple | dict, optional): What it is called with.
            None takes the outermost parts that run on what is made up.
        layout (str, optional): As in :func:`find_plans`.
        scope (str): What the parts' names begin with. Defaults to ``''``.

    Returns:
        list[tuple]: For each part that ran the prefix of its names, the part,
        what it was called with, and what :func:`find_plans` gives.
    """
    if example is not None:
        return [('', model, example, find_plans(model, example, layout))]
    parts: list[tuple] = []
    for part, name in name_modules(model).items():
        prefix = name and f'{name}.'
        if not prefix.startswith(scope) or prefix.startswith(
                tuple(other for other, *_ in parts)):
            continue
        for given in made_up(part, outermost=name in ('', 'backbone')):
            try:
                found = find_plans(part, given, layout, prefix)
            except ValueError as error:  # its own parts may run
                LOGGER.info('%s', error)
                continue
            parts.append((prefix, part, given, found))
            break
    return parts


class RefusedError(ValueError):
    """A block cannot take steps; says why."""


def modules_by_name(model: nn.Module) -> dict[str, nn.Module]:
    """Modules as the unwrapped model names them.

    Wrappers (``torch.compile``, checkpointing, FSDP) are not among them, but
    what is in them.
    """
    return {name: module for module, name in name_modules(model).items()}


def find_module(modules: dict[str, nn.Module], name: str,
                what: str) -> nn.Module:
    """A module by its name; ``what`` begins the message if there is none."""
    if name not in modules:
        raise ValueError(f'{what} {name!r}, and the model has no such module')
    return modules[name]


def check_module_names(names: Iterable[str]) -> list[str]:
    """The argument ``modules_to_save``; anything but names is refused."""
    checked = list(names)
    if isinstance(names, str) or not all(
            isinstance(name, str) and name for name in checked):
        raise TypeError(f'modules_to_save must be a list of names, got '
                        f'{names!r}')
    return checked


def _inside_wrappers(run: Run) -> Run:
    """The run of a module in wrappers, which run by its name."""
    while unwrap(run.module) is not run.module:
        run = next(r for r in run.inner if r.name == run.name)
    return run


def steps_by_block(arrangement: Arrangement
                   ) -> dict[str, tuple[list[Run], list[Sum]]]:
    """Runs and steps of each block.

    Where a step stands in no stage, its block is the module that adds, if
    there is another of its class: stages may have one block each.
    """
    named = [(found, _inside_wrappers(place[1].run), place[1].name)
             if place else (found, found.owner, found.owner.name)
             for _, found, place in arrangement.named
             if found.state and found.left_out in TAKEN]
    alone = Counter(type(m) for m in {
        found.owner.module for found, *_ in named if found.left_out == ALONE})
    table: dict[str, tuple[list, list]] = {}
    for found, run, name in named:
        if found.left_out == ALONE and alone[type(run.module)] < 2:
            continue
        runs, sums = table.setdefault(name, ([], []))
        if run not in runs:
            runs.append(run)
        sums.append(found)
    return table


def innermost(names: Collection[str]) -> set[str]:
    """Names of modules that hold no other one of them."""
    return {name for name in names
            if not any(other.startswith(f'{name}.') for other in names)}


def _plans(name: str, passes: list[Pass], found: list[tuple],
           layout: str | None) -> tuple[Plan, Plan]:
    """Plans of one block."""
    plans = []
    shapes = [[s.shape for s in sums] for _, sums in found]
    if len(shapes[0]) != len(shapes[1]):
        raise RefusedError('takes other steps in training mode')
    for one, (runs, sums) in zip(passes, found):
        run = runs[0]
        if len(runs) > 1 or run.name != name:
            raise RefusedError(
                'runs several times in one pass, so that its steps cannot be '
                'told apart' if len(runs) > 1 else 'has no forward of its own')
        if isinstance(run.module, StepBlock):
            raise RefusedError('has steps already')
        inside = [a for a in one.follow.additions if run in a.runs]
        names = NAMES.get(len(sums)) or [
            f'step_{k}' for k in range(len(sums))]
        lasts = {}
        places, steps = [], []
        for k, found_sum in enumerate(sums):
            parts = [a for a in inside if a.found is found_sum]
            if len(parts) != len(found_sum.ordinals):
                raise RefusedError(
                    'adds to its state where no function of PyTorch shows it '
                    '(compiled or scripted code, a fused addition)')
            if any(b.result_of is not a or not b.goes_on
                   for a, b in zip(parts, parts[1:])):
                raise RefusedError(
                    'adds several branches to one state and changes the sum '
                    'in between (a factor, a view, a cast)')
            first = parts[0]
            source = -1 if run in first.input_of else (
                lasts.get(first.result_of))
            lasts[parts[-1]] = k
            steps.append(parts)
            batch, channels = _axes(
                one, run, found_sum.shape, first.views[first.state],
                [s[k] for s in shapes], [p.samples for p in passes], layout)
            dims = len(found_sum.shape)
            if dims == 3 and run.masks:
                try:
                    kept(run.masks, found_sum.shape[batch],
                         found_sum.shape[3 - batch - channels])
                except UnknownMaskError as error:
                    raise RefusedError(str(error)) from None
            places.append(Place(
                names[k], (),
                tuple(a.state for a in parts), source, batch, channels,
                found_sum.shape[channels], dims,
                parts[-1].used_again,
                len(parts) == 1 and first.dropped,
                dims == 3 and map_shape(run.pairs, found_sum.shape[
                    3 - batch - channels]) is not None))
        taken = {run, *(a for parts in steps for a in parts)}
        counted = [a for a in inside if taken & {*a.input_of, *a.results_of}]
        by_state = all(place.source is not None for place in places) and (
            len(counted) == sum(not taken.isdisjoint(a.near) for a in inside))
        if by_state:
            inside = counted
        plans.append(Plan(name, len(inside), by_state, tuple(
            replace(place, ordinals=tuple(map(inside.index, parts)))
            for place, parts in zip(places, steps))))
    widths = [[place.width for place in plan.places] for plan in plans]
    if widths[0] != widths[1]:
        raise RefusedError('has another width in training mode')
    return tuple(plans)


def _axes(one: Pass, run: Run, shape: tuple[int, ...], view: tuple,
          shapes: list[tuple[int, ...]],
          samples: list[int], layout: str | None) -> tuple[int, int]:
    """Axes of the samples and of the channels of a state."""
    if layout is not None and len(layout) == len(shape):
        return layout.index('N'), layout.index('C')
    grows = [axis for axis, (m, n) in enumerate(zip(*shapes))
             if m != n and m * samples[1] == n * samples[0]]
    batch = grows[0] if grows else 0
    first = one.watch.wrong_shapes.get(shape)
    if len(shape) == 3 and (not grows or batch == 0 and first):
        raise RefusedError(
            f'has tokens {tuple(shape)} whose axis of samples is not clear'
            + f' ({first} takes the tokens first)' * bool(first)
            + "; give layout=, 'NLC' or 'LNC'")
    seen = one.follow.channels
    votes = seen.get((run, torch.Size(shape)), set()) - {batch}
    if any(shape.count(shape[axis]) > 1 for axis in votes):
        # A transposed one looks the same: what was given the state counts.
        votes = seen.get((run, view), set()) - {batch}
    if not votes:  # its layers see it as windows, or padded
        widths = one.follow.widths.get(run, ())
        votes = {axis for axis, size in enumerate(shape)
                 if axis != batch and size in widths}
    if len(votes) != 1:
        raise RefusedError(
            f'has states {tuple(shape)} whose axis of channels is not clear; '
            f"give layout=, such as 'NCHW', 'NHWC', 'NLC' or 'LNC'")
    return batch, votes.pop()


def _run(model: nn.Module, example: object) -> list[Pass]:
    """Two passes, in the first of these ways in which the model runs."""
    ways = (
        ('meta', (2, False), (3, True)),
        ('meta', (2, None), (3, None)),  # it has not been in the other mode
        (None, (2, False), (3, False)),  # what it does depends on values
        (None, (None, False), (None, False)),
    )
    failed = ValueError()
    for device, *passes in ways:
        try:
            with on_meta(model) if device else nullcontext():
                return [_pass(model, example, samples, training, device)
                        for samples, training in passes]
        except Exception as error:
            failed = error
    raise failed


def never_called(model: nn.Module, example: object,
                 blocks: Iterable[nn.Module]) -> set[nn.Module]:
    """Blocks whose ``forward`` no pass calls: others use their parts.

    None where the model does not run on the example, on the meta device.
    """
    left: set[nn.Module] = set()
    for samples in (None, 16):  # videos come as so many frames
        left.update(blocks)
        try:
            args, kwargs = call_of(example, samples, 'meta')
            with (hooked([block.register_forward_pre_hook(
                    lambda block, _: left.discard(block)) for block in left]),
                  on_meta(model), EAGER, in_mode(model, False),
                  torch.no_grad(), torch.random.fork_rng([])):
                model(*args, **kwargs)
            return left
        except Exception:  # of a model that takes something else
            continue
    return set()


def _pass(model: nn.Module, example: object, samples: int | None,
          training: bool | None, device: str | None) -> Pass:
    args, kwargs = call_of(example, samples, device)
    watch = _Watch(model)
    follow = _Follow(watch)
    with (hooked(watch.attach()), EAGER, in_mode(model, training),
          torch.no_grad(), torch.random.fork_rng([]), follow):
        model(*args, **kwargs)
    return Pass(watch, Arrangement(watch), follow, samples or 1)
