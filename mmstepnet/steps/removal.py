"""Blocks taken out of a network: what is left computes what f = 0 would."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn as nn
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from .examples import call_of, made_up
from .finding import (
    EAGER,
    Arrangement,
    Finder,
    Selection,
    Sum,
    hooked,
    in_mode,
    select,
    unwrap,
)
from .finding.selection import around, is_within
from .finding.stages import projects
from .finding.sums import Norms
from .finding.wrappers import name_modules
from .generated import Generated, generated_class
from .places import innermost, modules_by_name, steps_by_block
from .step_block import StepBlock, check_unsharded, steps_of

Form = tuple[type, tuple[bool, ...]] | None
"""What a module returns: its state alone, or a tuple or list in which the
state stands at the place of True and None at the others."""


def remove_blocks(model: nn.Module, names: Selection,
                  example: Tensor | tuple | dict | None = None) -> list[str]:
    r"""Take residual blocks out of a model, in place.

    What is left is :math:`x_{t+1} = x_t`, as if f were 0 in

    .. math::
        x_{t+1} = \mathrm{act}(x_t + f(x_t) \otimes \Delta t).

    Whether a block may go is tried: the model runs on the example with f = 0
    in the named blocks, and each must return what it was given, bit for bit.
    So a block behind a ReLU may go, one that ends in a SiLU or a post-norm or
    projects its identity may not. Parameters and operations of the blocks
    go; containers keep their length and other modules their keys. To load
    what was saved then, call this on a new model, before a strict
    ``load_state_dict``. Build optimizers afterwards. Nothing brings the
    blocks back: copy the model first if you need them.

    Args:
        model (nn.Module): The model.
        names (str | type | Sequence): The blocks, or modules that contain
            them, as ``blocks=`` of :func:`insert_steps`. A module inside of a
            block, as the attention or the MLP of a Transformer's, goes alone
            and gives 0 from then on, where that makes f of its step 0.
        example (Tensor | tuple | dict, optional): What the model is called
            with, see :func:`insert_steps`. Values count here; zeros are
            replaced by random numbers. Defaults to None.

    Returns:
        list[str]: Names of what was removed.

    Raises:
        ValueError: A block may not go, each with the reason, or one of
            ``names`` means no residual block. The model is left as it was.

    Example:
        >>> import torch
        >>> from torchvision.models import resnet18
        >>> from mmstepnet import remove_blocks
        >>> model = resnet18().eval()
        >>> remove_blocks(model, ['layer1.0', 'layer3.1'])
        ['layer1.0', 'layer3.1']
        >>> remove_blocks(model, 'layer2.0')
        Traceback (most recent call last):
        ...
        ValueError: ResNet: layer2.0 projects its identity
    """
    removed = prepare_removal(model, names, example)
    _exchange(model, removed)
    return list(removed)


@contextmanager
def without_blocks(model: nn.Module,
                   removed: dict[str, 'RemovedBlock']) -> Iterator[None]:
    """Run a model without some blocks, which come back afterwards."""
    undo = _exchange(model, removed)
    try:
        yield
    finally:
        for children, key, module in undo:
            children[key] = module


def _exchange(model: nn.Module, others: dict[str, 'RemovedBlock']
              ) -> list[tuple[dict, str, nn.Module]]:
    """Put modules in the places of those named, wrappers included."""
    outermost = {name: m for m, name in reversed(name_modules(model).items())}
    new = {outermost[name]: other for name, other in others.items()}
    undo = [(parent._modules, key, child) for parent in model.modules()
            for key, child in parent._modules.items() if child in new]
    for children, key, child in undo:
        children[key] = new[child]
    return undo


def prepare_removal(model: nn.Module, names: Selection | None,
                    example: object = None) -> dict[str, 'RemovedBlock']:
    """What may stand in the place of blocks, by name; nothing is changed.

    Args:
        model (nn.Module): The model.
        names (optional): See :func:`remove_blocks`. None is all that may go.
        example (optional): See :func:`remove_blocks`.
    """
    check_unsharded(model)
    model = unwrap(model)
    if any(p.is_meta for p in model.parameters()):
        raise ValueError(f'{type(model).__name__} is on the meta device, '
                         f'where no block can be tried; give it memory first')
    modules = modules_by_name(model)
    chosen = None if names is None else select(modules, names)
    steps, call = _look(model, example)
    table = steps_by_block(steps)
    sums = {name: table[name][1] for name in table
            if name in innermost(table)}
    for _, found, place in steps.named:
        if place and not found.state:  # the block projects
            sums.setdefault(place[1].name, [])
    meant = _meant(chosen, sums, modules)
    checks = {
        name: _Check(modules[name], sums[name]) if name == block
        else _PartCheck(modules[name]) for name, block in meant.items()}
    with _no_zeros(modules[block] for name, block in meant.items()
                   if name != block):
        _run(model, call, checks.values(), {
            s.owner.name for name, block in meant.items()
            for s in sums[block] if s.part is None or name != block})
    if getattr(getattr(model, 'config', None), 'use_cache', False):
        for check in checks.values():
            check.mind_cache()
    refused = [f'{name} {c.why}' for name, c in checks.items() if c.why]
    if refused and names is not None:
        raise ValueError(f'{type(model).__name__}: {"; ".join(refused)}')
    return {name: _stand_in(modules[name], check.form, name != meant[name])
            for name, check in checks.items() if not check.why}


def _meant(chosen: dict[str | type, set[str]] | None,
           blocks: Collection[str],
           modules: dict[str, nn.Module]) -> dict[str, str]:
    """Chosen blocks and chosen parts of others, with the blocks' names."""
    named = {''} if chosen is None else set().union(*chosen.values())
    meant: dict[str, str] = {}
    for name in modules:  # a module comes before what is in it
        block = next((n for n in around(name) if n in blocks), None)
        if block is not None and (
                block == name and is_within(name, named) or name in named
                and not is_within(name, set(meant))):
            meant[name] = block
    for item, names in (chosen or {}).items():
        if not any(is_within(name, names) for name in meant):
            raise ValueError(
                f'blocks={item!r} means no residual block of the model, nor '
                f'a part of one; find_steps shows where its steps are')
    return meant


class _Check:
    """Whether a block returns its state where f is 0."""

    form: Form = None
    why: str | None = 'has a forward that no pass calls'
    waits = False

    def __init__(self, module: nn.Module, sums: Sequence[Sum] = ()):
        self.module, self.sums = module, sums

    def attach(self) -> list[RemovableHandle]:
        """See runs of the module; steps that tell themselves give f = 0."""
        return [
            self.module.register_forward_pre_hook(
                self.enter, with_kwargs=True),
            self.module.register_forward_hook(self.leave),
            *(step.drop_path.register_forward_hook(_give_zeros)
              for step in steps_of(self.module))]

    def enter(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        """Keep the state, which the block may overwrite."""
        self.state: Any = next(iter((*args, *kwargs.values())), None)
        if isinstance(self.state, Tensor):
            self.state = self.state.clone()

    def leave(self, module: nn.Module, args: tuple, out: Any) -> Any:
        """Compare what the block returns with it."""
        outs = [out]
        if type(out) in (tuple, list):
            outs = [t for t in out if t is not None]
            self.form = type(out), tuple(t is not None for t in out)
        x = self.state
        if len(outs) != 1 or not all(
                isinstance(t, Tensor) for t in (x, *outs)):
            self.why = 'takes or returns something else than one state'
        elif not x.any():
            self.why = 'has a state of 0 on the example, which shows nothing'
        else:
            same = x.shape == outs[0].shape and torch.equal(x, outs[0])
            self.why = None if same else self.suspicion()

    def see(self, same: bool) -> None:
        """See whether the first sum behind it is its state."""

    def suspicion(self) -> str:
        """Why the block may change its state though f is 0."""
        if not self.sums or projects(self.sums):
            return 'projects its identity'
        then = dict.fromkeys(s.activation for s in self.sums if s.activation)
        return f'applies {", ".join(then)} to the sum, which changes it' if (
            then) else 'changes its state, though f is 0'

    def mind_cache(self) -> None:
        """Refuse a layer whose place in a cache would stay empty."""
        if self.why is None and any(
                getattr(m, 'layer_idx', None) is not None
                for m in self.module.modules()):
            self.why = ('has a number of its own in a cache, which would '
                        'hold too few layers; config.use_cache = False does '
                        'without one')


def _give_zeros(module: nn.Module, args: tuple, out: Any) -> Tensor:
    return torch.zeros_like(out)


class _PartCheck(_Check):
    """Whether f of a step is 0 where a part of a block gives zeros."""

    why = 'computes no f of a step that comes behind it'

    def leave(self, module: nn.Module, args: tuple, out: Any) -> Any:
        """Give zeros instead."""
        first, self.waits = out, True
        if type(out) in (tuple, list):
            first = out[0]
            self.form = type(out), (True, *[False] * (len(out) - 1))
        if not all(isinstance(t, Tensor) for t in (self.state, first)) or (
                self.state.shape != first.shape):
            self.why, self.waits = 'returns something else than a state', False
            return out
        return _stand_in(module, self.form, True).forward(self.state)

    def see(self, same: bool) -> None:
        """See whether the first sum behind the part is its state."""
        self.waits = False
        self.why = None if same else (
            'computes no f alone: zeros from it leave a bias, a norm or '
            'another branch')


class _AtRest(Norms):
    """In the place of a step's norms: makes the sum the state, as f = 0.

    It keeps the state, for a branch that may still come.
    """

    f = None

    def __init__(self, checks: Collection[_Check], x: Tensor):
        self.checks = checks
        self.state: Any = x

    def see_sum(self, total: Tensor) -> None:
        """Let those who wait see the sum before."""
        for check in self.checks:
            if check.waits:
                check.see(torch.equal(total, self.state))
        total.copy_(self.state)


@contextmanager
def _no_zeros(blocks: Iterable[nn.Module]) -> Iterator[None]:
    """Random numbers for parameters of 0, as biases at their start."""
    before = [(p, p.data) for block in blocks for p in block.parameters()
              if not p.any()]
    for p, zeros in before:
        p.data = _fresh(zeros)
    try:
        yield
    finally:
        for p, zeros in before:
            p.data = zeros


def _look(model: nn.Module, example: object) -> tuple[Arrangement, tuple]:
    """Find the steps of a model, and a call that it runs on."""
    error = 'nothing can be made up for a model of its class'
    for given in made_up(model, outermost=True) if example is None else (
            example, ):
        call = call_of(given)
        try:
            finder = _run(model, call)
        except Exception as raised:
            error = f'{type(raised).__name__}: {raised}'
        else:
            return Arrangement(finder), call
    raise ValueError(
        f'{type(model).__name__} does not run on the example that its blocks '
        f'are to be tried with ({error}); give example= that it takes')


def _fresh(t: Any) -> Any:
    """A copy, which may be written to, and random numbers in place of zeros.

    Many functions leave 0 as it is, which shows nothing.
    """
    if not isinstance(t, Tensor):
        return t
    if t.is_floating_point() and not t.any():
        return torch.randn(
            t.shape, generator=torch.Generator().manual_seed(0)).to(t)
    return t.clone()


def _run(model: nn.Module, call: tuple[tuple, dict],
         checks: Collection[_Check] = (),
         owners: Collection[str] = ()) -> Finder:
    """Follow one pass in evaluation mode; sums of the owners have f = 0."""
    finder = Finder(model, norms=partial(_AtRest, checks), owners=owners)
    args, kwargs = call
    with (hooked([h for check in checks for h in check.attach()]),
          hooked(finder.attach()), EAGER, in_mode(model, False),
          torch.no_grad()):
        model(*map(_fresh, args),
              **{key: _fresh(value) for key, value in kwargs.items()})
    return finder


class RemovedBlock(Generated):
    """A block without its steps: it returns the state that it is given.

    Of what the block was, it keeps the arguments, the form of what it
    returns, hooks and attributes that are no tensors or modules. In the
    place of a part of a block it returns zeros.
    """

    form: Form
    is_part: bool

    def forward(self, *args, **kwargs) -> Tensor | tuple | list:
        """Return the first argument, or zeros like it."""
        state = next(iter((*args, *kwargs.values())))
        if self.is_part:
            state = torch.zeros_like(state)
        if self.form is None:
            return state
        cls, places = self.form
        return cls(state if place else None for place in places)

    def _get_name(self) -> str:
        return f'Removed{self.host.__name__}'

    def extra_repr(self) -> str:
        """Say nothing: what the host would say it may have lost."""
        return ''


def _stand_in(block: nn.Module, form: Form, is_part: bool) -> Any:
    host = block.host if isinstance(block, StepBlock) else type(block)
    cls = generated_class(RemovedBlock, host)
    removed = cls.__new__(cls)
    vars(removed).update(
        {key: value for key, value in vars(block).items()
         if not isinstance(value, Tensor) and key != 'forward'},
        _parameters={}, _buffers={}, _modules={},
        _non_persistent_buffers_set=set(), form=form, is_part=is_part)
    return removed
