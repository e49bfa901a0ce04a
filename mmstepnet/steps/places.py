"""Where the blocks of a model add to their states, found by running it."""

import copy
import re
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

import torch
import torch.nn as nn
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from .finding import (
    EAGER,
    FIRST,
    Arrangement,
    Finder,
    Run,
    Sum,
    explain,
    tensors,
)
from .own_forward import WRITING, Place, Plan, addition, mask_of_tokens
from .step_block import StepBlock

CHANNELS_FIRST = re.compile(r'^conv|^(batch|group|instance)_norm$')
CHANNELS_LAST = {'linear', 'layer_norm', 'rms_norm'}
"""Functions whose names say which axis of their tensors is the channels'."""

ALONE = 'no container'

NAMES = {1: ('step', ), 2: ('attn_step', 'mlp_step'),
         3: ('attn_step', 'cross_step', 'mlp_step')}


@dataclass(eq=False)
class Addition:
    """One addition of two tensors, in one pass.

    Attributes:
        runs (list[Run]): The runs of modules that it happened in.
        input_of (set[Run]): Those whose first argument one operand is.
        result_of (Addition, optional): Whose result one operand is.
        found (Sum, optional): The step that it is, or is a part of.
        state (int): Which operand is the state.
        dropped (bool): Whether stochastic depth was applied to the other.
        used_again (bool): Whether memory that the sum was written to is used
            later on other than by whoever was given the sum.
    """

    runs: list[Run]
    input_of: set[Run]
    result_of: 'Addition | None'
    found: Sum | None = None
    state: int = 0
    dropped: bool = False
    used_again: bool = False
    out: Callable = field(default=lambda: None)


class _Watch(Finder):
    """A finder that tells of each operation which step it was."""

    last: Sum | None = None
    x: Tensor | None = None
    dropped = False

    def _begin(self, operation: object, owner: Run, x: Tensor, f: Tensor,
               *args):
        self.x = x
        base = self._base(self.tags.number(x), self.tags.get(f))
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
        run.first = weakref.ref(given[0]) if given and isinstance(
            given[0], Tensor) else lambda: None
        run.mask = mask_of_tokens(
            type(module).forward, (module, *args), kwargs)


class _Follow(TorchFunctionMode):
    """Takes down the additions of a pass, as a block's mode will see them."""

    def __init__(self, finder: _Watch):
        super().__init__()
        self.finder = finder
        self.additions: list[Addition] = []
        self.replaced: dict[int, list[Addition]] = {}  # by their memory
        self.aliases: dict[int, list[int]] = {}  # of a copy's memory
        self.memory: list[StorageWeakRef] = []  # which no other gets
        self.channels: dict[tuple[Run, torch.Size], set[int]] = {}
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
            list(finder.stack),
            {r for r in finder.stack if r.first() is not None
             and any(t is r.first() for t in operands)},
            next((a for a in reversed(self.additions)
                  if any(t is a.out() for t in operands)), None))
        self.additions.append(seen)
        finder.last = None
        out = func(*args, **kwargs)
        if finder.last is not None:
            seen.found, seen.dropped = finder.last, finder.dropped
            views = [finder.tags.view(t) for t in (*operands, finder.x)]
            seen.state = int(views[2] == views[1] != views[0])
        if func in WRITING:
            out = self._stand_in(seen, out)
        seen.out = weakref.ref(out)
        return out

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
                for run in self.finder.stack:
                    self.channels.setdefault((run, t.shape), set()).add(axis)
                    self.widths.setdefault(run, set()).add(t.shape[axis])


@dataclass
class Pass:
    """What one pass has shown."""

    watch: _Watch
    arrangement: Arrangement
    follow: _Follow
    samples: int


def find_plans(model: nn.Module, example: object,
               layout: str | None = None) -> tuple[dict, str]:
    """Find the blocks of a model and where each takes its steps.

    The model runs twice: in evaluation and in training mode, with two and with
    three samples, so that what depends on either is seen. It does so on the
    meta device, where that costs nothing; where it cannot, both runs are real
    ones in evaluation mode, or in the mode and with the number of samples
    that it has.

    Args:
        model (nn.Module): The model.
        example (Tensor | tuple | dict): What it is called with.
        layout (str, optional): Axes of the states, such as ``'NLC'``, where
            they cannot be told.

    Returns:
        tuple: Plans for evaluation and training by the blocks' names, and
        what was seen, for an error.
    """
    try:
        passes = _run(model, example)
    except Exception as error:
        raise ValueError(
            f'{type(model).__name__} does not run on the example that its '
            f'blocks are to be found with ({type(error).__name__}: {error}); '
            f'give example= that it takes') from error
    plans, refused = {}, []
    tables = [_by_block(p) for p in passes]
    for name in tables[0]:
        try:
            if name not in tables[1]:
                raise RefusedError('has no step in training mode')
            plans[name] = _plans(name, passes, [t[name] for t in tables],
                                 layout)
        except RefusedError as error:
            refused.append(f'  {name} {error}')
    arrangement = passes[0].arrangement
    seen = explain(passes[0].watch, arrangement.steps)
    if refused:
        seen = '\n'.join([*refused, seen])
    return plans, seen


class RefusedError(ValueError):
    """A block cannot take steps; says why."""


def _by_block(one: Pass) -> dict[str, tuple[list[Run], list[Sum]]]:
    """Runs and steps of each block; the innermost where they nest.

    Where a step stands in no stage, its block is the module that adds, if
    there is another of its class: stages may have one block each.
    """
    named = [(found, place[1].run, place[1].name) if place else
             (found, found.owner, found.owner.name)
             for _, found, place in one.arrangement.named
             if found.state and found.left_out in (None, FIRST, ALONE)]
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
    return {
        name: found for name, found in table.items()
        if not any(other.startswith(f'{name}.') for other in table)
    }


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
        if run.mask is not None and len(sums[0].shape) == 3:
            raise RefusedError(f'is given {run.mask}, of tokens that its '
                               f'steps would pool over all the same')
        inside = [a for a in one.follow.additions if run in a.runs]
        names = NAMES.get(len(sums)) or [
            f'step_{k}' for k in range(len(sums))]
        lasts = {}
        places = []
        for k, found_sum in enumerate(sums):
            parts = [a for a in inside if a.found is found_sum]
            if len(parts) != len(found_sum.ordinals):
                raise RefusedError(
                    'adds to its state where no function of PyTorch shows it '
                    '(compiled or scripted code, a fused addition)')
            first = parts[0]
            source = None
            if run in first.input_of:
                source = -1
            elif first.result_of in lasts:
                source = lasts[first.result_of]
            lasts[parts[-1]] = k
            batch, channels = _axes(
                one, run, found_sum.shape, [s[k] for s in shapes],
                [p.samples for p in passes], layout)
            places.append(Place(
                names[k], tuple(map(inside.index, parts)),
                tuple(a.state for a in parts), source, batch, channels,
                found_sum.shape[channels], len(found_sum.shape),
                any(a.used_again for a in parts),
                len(parts) == 1 and first.dropped))
        plans.append(Plan(name, len(inside), tuple(places)))
    widths = [[place.width for place in plan.places] for plan in plans]
    if widths[0] != widths[1]:
        raise RefusedError('has another width in training mode')
    return tuple(plans)


def _axes(one: Pass, run: Run, shape: tuple[int, ...], shapes: list,
          samples: list[int], layout: str | None) -> tuple[int, int]:
    """Axes of the samples and of the channels of a state."""
    batch = next((axis for axis, (m, n) in enumerate(zip(*shapes))
                  if m != n and m * samples[1] == n * samples[0]), 0)
    if layout is not None and len(layout) == len(shape):
        return layout.index('N'), layout.index('C')
    votes = one.follow.channels.get((run, torch.Size(shape)), set()) - {batch}
    if not votes:  # its layers see it as windows, or padded
        widths = one.follow.widths.get(run, ())
        votes = {axis for axis, size in enumerate(shape)
                 if axis != batch and size in widths}
    if len(votes) != 1:
        raise RefusedError(
            f'has states {tuple(shape)} whose axis of channels is not clear; '
            f"give layout=, such as 'NCHW', 'NHWC', 'NLC' or 'LNC'")
    return batch, votes.pop()


# --- Running -----------------------------------------------------------------


def _run(model: nn.Module, example: object) -> list[Pass]:
    """Two passes, in the first of these ways in which the model runs."""
    ways = (
        ('meta', (2, False), (3, True)),
        ('meta', (2, None), (3, None)),  # it has not been in the other mode
        (None, (2, False), (3, False)),  # what it does depends on values
        (None, (None, None), (None, None)),
    )
    for device, *passes in ways:
        try:
            with on_meta(model) if device else nullcontext():
                return [_pass(model, example, samples, training, device)
                        for samples, training in passes]
        except Exception:
            if device is None and passes[0] == (None, None):
                raise


def _pass(model: nn.Module, example: object, samples: int | None,
          training: bool | None, device: str | None) -> Pass:
    args, kwargs = call_of(example, samples, device)
    watch = _Watch(model)
    follow = _Follow(watch)
    handles = watch.attach()
    try:
        with (EAGER, in_mode(model, training), torch.no_grad(),
              torch.random.fork_rng([]), follow):
            model(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
    return Pass(watch, Arrangement(watch), follow, samples or 1)


@contextmanager
def on_meta(model: nn.Module) -> Iterator[None]:
    """Show the model on the meta device; nothing is copied or changed.

    What its modules keep of a pass meanwhile is forgotten.
    """
    before = [(vars(m), dict(vars(m))) for m in model.modules()]
    try:
        for attributes, saved in before:
            for key, value in saved.items():
                if isinstance(value, Tensor):
                    attributes[key] = value.to('meta')
                elif key in ('_parameters', '_buffers'):
                    attributes[key] = {k: t if t is None else t.detach().to(
                        'meta') for k, t in value.items()}
        yield
    finally:
        for attributes, saved in before:
            attributes.clear()
            attributes.update(saved)


def call_of(example: object, samples: int | None = None,
            device: str | None = None) -> tuple[tuple, dict]:
    """Arguments of a call, with another number of samples or elsewhere."""
    if isinstance(example, dict):
        args, kwargs = (), dict(example)
    else:
        args = example if isinstance(example, (tuple, list)) else (example, )
        kwargs = {}
    size = next((len(t) for t in (*args, *kwargs.values())
                 if isinstance(t, Tensor) and t.dim()), None)

    def change(t: object) -> object:
        if not isinstance(t, Tensor):
            return t
        t = t if device is None else t.to(device)
        if samples is not None and t.dim() and len(t) == size:
            t = t[:1].expand(samples, *t.shape[1:]).contiguous()
        return t

    return tuple(map(change, args)), {k: change(v) for k, v in kwargs.items()}


@contextmanager
def in_mode(model: nn.Module, training: bool | None) -> Iterator[None]:
    """Training or evaluation mode; hosts do more than that in ``train``."""
    before = {m: m.training for m in model.modules()}
    for module in before if training is not None else ():
        module.training = training
    try:
        yield
    finally:
        for module, was in before.items():
            module.training = was


# --- Causality ---------------------------------------------------------------


def causal_blocks(model: nn.Module, example: object,
                  plans: dict[str, tuple[Plan, Plan]]) -> list[str]:
    """Blocks in which no token sees a later one, found by trying.

    One block of each class is run on states that differ in one token. Where
    the model is on the meta device, a copy of the block with random weights
    is.

    Args:
        model (nn.Module): The model.
        example (Tensor | tuple | dict): What it is called with.
        plans (dict): Plans of its blocks by name.

    Returns:
        list[str]: Names of the blocks of such a class.
    """
    modules = {name: model.get_submodule(name) for name, (plan, _)
               in plans.items() if plan.places[0].dims == 3}
    kinds = {type(block): name for name, block in reversed(modules.items())}
    calls: dict[str, tuple] = {}
    handles = []
    for name in kinds.values():
        def take_down(block, args, kwargs, name=name):
            calls.setdefault(name, copy.deepcopy((args, kwargs)))

        handles.append(modules[name].register_forward_pre_hook(
            take_down, with_kwargs=True))
    meta = any(p.is_meta for p in model.parameters())
    causal = set()
    with EAGER, in_mode(model, False), torch.no_grad(), (
            torch.random.fork_rng([])):
        try:
            if handles:
                args, kwargs = call_of(example, device=meta and 'meta' or None)
                model(*args, **kwargs)
        finally:
            for handle in handles:
                handle.remove()
        for name, call in calls.items():
            block = modules[name]
            if meta:
                block = _with_numbers(copy.deepcopy(block).to_empty(
                    device='cpu'))
                call = tree_map_only(Tensor, _random, call)
            if _is_causal(block, *call, plans[name][0].places[0]):
                causal.add(type(modules[name]))
    return [name for name, block in modules.items() if type(block) in causal]


def _random(t: Tensor) -> Tensor:
    t = torch.empty_like(t, device='cpu')
    return t.normal_() if t.is_floating_point() else t.zero_()


def _with_numbers(block: nn.Module) -> nn.Module:
    for t in (*block.parameters(), *block.buffers()):
        t.copy_(_random(t))
    return block


def _is_causal(block: nn.Module, args: tuple, kwargs: dict,
               place: Place) -> bool:
    """Whether tokens move those behind them alone."""
    axis = 3 - place.batch - place.channels
    key = None if args else next(iter(kwargs))
    x = args[0] if args else kwargs[key]
    if not isinstance(x, Tensor) or x.dim() != 3:
        return False

    def run(x: Tensor) -> Tensor:
        a, k = copy.deepcopy((args, kwargs))  # they may hold a cache
        out = block(x, *a[1:], **k) if a else block(**{**k, key: x})
        while not isinstance(out, Tensor):
            out = next(iter(out.values() if isinstance(out, dict) else out))
        return out

    before, later = run(x.clone()), False
    length = x.shape[axis]
    for at in {length - 1, length // 2, length // 3, 1} & set(range(length)):
        moved = x.clone()
        moved.select(axis, at).add_(torch.randn_like(moved.select(axis, at)))
        change = (run(moved) - before).abs().amax(
            [d for d in range(3) if d != axis])
        limit = 1e-6 * change.max()
        if (change[:at] > limit).any():
            return False
        later |= bool((change[at + 1:] > limit).any())
    return later
