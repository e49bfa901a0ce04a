"""Blocks taken out of a network: what is left computes what f = 0 would."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache

import torch
import torch.nn as nn
from torch import Tensor

from .examples import call_of, made_up
from .finding import (
    EAGER,
    Arrangement,
    Finder,
    Selection,
    Sum,
    in_mode,
    select,
    unwrap,
)
from .finding.selection import is_within
from .finding.stages import projects
from .finding.wrappers import name_modules
from .generated import Generated
from .places import modules_by_name, steps_by_block
from .residual import ResidualStep
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
    removed, refused = prepare_removal(model, names, example)
    if refused:
        raise ValueError(f'{type(model).__name__}: ' + '; '.join(
            f'{name} {why}' for name, why in refused.items()))
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


@cache
def removed_class(host: type) -> type:
    """Class of what stands in the place of a removed block."""
    return type(host)(
        host.__name__, (RemovedBlock, host),
        dict(host=host, make=staticmethod(removed_class),
             __module__=__name__))


def _stand_in(block: nn.Module, form: Form, is_part: bool) -> RemovedBlock:
    cls = type(block)
    cls = removed_class(cls.host if issubclass(cls, StepBlock) else cls)
    removed = cls.__new__(cls)
    vars(removed).update(
        {key: value for key, value in vars(block).items()
         if not isinstance(value, Tensor) and key != 'forward'},
        _parameters={}, _buffers={}, _modules={},
        _non_persistent_buffers_set=set(), form=form, is_part=is_part)
    return removed


def _exchange(model: nn.Module, others: dict[str, nn.Module]
              ) -> list[tuple[dict, str, nn.Module]]:
    """Put modules in the places of those named, wrappers included."""
    outermost: dict[str, nn.Module] = {}
    for module, name in name_modules(model).items():
        outermost.setdefault(name, module)
    new = {outermost[name]: other for name, other in others.items()}
    undo = [(parent._modules, key, child) for parent in model.modules()
            for key, child in parent._modules.items() if child in new]
    for children, key, child in undo:
        children[key] = new[child]
    return undo


def prepare_removal(model: nn.Module, names: Selection | None,
                    example: object = None
                    ) -> tuple[dict[str, RemovedBlock], dict[str, str]]:
    """What may stand in the place of blocks.

    Args:
        model (nn.Module): The model; it is left as it is.
        names (optional): See :func:`remove_blocks`. None is all blocks.
        example (optional): See :func:`remove_blocks`.

    Returns:
        tuple: By the names of blocks what may stand there, and why the others
        may not go.
    """
    check_unsharded(model)
    model = unwrap(model)
    if any(p.is_meta for p in model.parameters()):
        raise ValueError(f'{type(model).__name__} is on the meta device, '
                         f'where no block can be tried; give it memory first')
    modules = modules_by_name(model)
    chosen = None if names is None else select(modules, names)
    steps, call = _look(model, example)
    sums = {name: found for name, (_, found) in steps_by_block(
        steps).items()}
    projecting = {place[1].name for _, found, place in steps.named
                  if place and not found.state} - set(sums)
    blocks, parts = _meant(chosen, {*sums, *projecting}, modules)
    checks = {name: _Check(modules[name], _suspicion(sums.get(name, ())))
              for name in blocks}
    with _at_rest([s for name in blocks for s in steps_of(modules[name])]):
        _run(Finder(model, norms=_AtRest, owners={
            s.owner.name for name in blocks for s in sums.get(name, ())
            if s.part is None}), call, checks.values())
    if parts:
        inside = {name: _PartCheck(modules[name]) for name in parts}
        with _no_zeros(modules[block] for block in parts.values()):
            _run(Finder(model, norms=lambda x: _Seen(x, inside.values()),
                        owners={s.owner.name for block in parts.values()
                                for s in sums.get(block, ())}),
                 call, inside.values())
        checks.update(inside)
    cached = getattr(getattr(model, 'config', None), 'use_cache', False)
    removed, refused = {}, {}
    for name in filter(checks.__contains__, modules):
        check = checks[name]
        if check.why is None and cached and any(
                getattr(m, 'layer_idx', None) is not None
                for m in modules[name].modules()):
            check.why = ('has a number of its own in a cache, which would '
                         'hold too few layers; config.use_cache = False does '
                         'without one')
        if check.why is None:
            removed[name] = _stand_in(modules[name], check.form, name in parts)
        else:
            refused[name] = check.why
    return removed, refused


def _meant(chosen: dict[str | type, set[str]] | None, blocks: set[str],
           modules: dict[str, nn.Module]
           ) -> tuple[list[str], dict[str, str]]:
    """Blocks that are chosen, and chosen parts of others with their blocks."""
    if chosen is None:
        return [name for name in modules if name in blocks], {}
    named = set().union(*chosen.values())
    whole = [name for name in modules
             if name in blocks and is_within(name, named)]
    parts: dict[str, str] = {}
    for name in modules:  # a module comes before what is in it
        block = next((b for b in blocks if is_within(name, {b})), None)
        if name in named and block not in (None, *whole) and not is_within(
                name, set(parts)):
            parts[name] = block
    for item, meant in chosen.items():
        if not any(is_within(name, meant) for name in (*whole, *parts)):
            raise ValueError(
                f'blocks={item!r} means no residual block of the model, nor '
                f'a part of one; find_steps shows where its steps are')
    return whole, parts


def _suspicion(sums: list[Sum]) -> str:
    """Why a block may change its state though f is 0."""
    if not sums or projects(sums):
        return 'projects its identity'
    then = dict.fromkeys(s.activation for s in sums if s.activation)
    return f'applies {", ".join(then)} to the sum, which changes it' if (
        then) else 'changes its state, though f is 0'


class _Check:
    """Whether a block returns its state where f is 0."""

    form: Form = None
    why: str | None = 'has a forward that no pass calls'

    def __init__(self, module: nn.Module, suspicion: str = ''):
        self.module, self.suspicion = module, suspicion

    def enter(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        """Keep the state, which the block may overwrite."""
        self.state = next(iter((*args, *kwargs.values())), None)
        if isinstance(self.state, Tensor):
            self.state = self.state.clone()

    def leave(self, module: nn.Module, args: tuple, kwargs: dict,
              out: object) -> object:
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
            self.why = None if same else self.suspicion


class _PartCheck(_Check):
    """Whether f of a step is 0 where a part of a block gives zeros."""

    why = 'computes no f of a step that comes behind it'
    waits = False

    def leave(self, part: nn.Module, args: tuple, kwargs: dict,
              out: object) -> object:
        """Give zeros instead."""
        first, self.waits = out, True
        if type(out) in (tuple, list):
            first = out[0]
            self.form = type(out), (True, *[False] * (len(out) - 1))
        if not all(isinstance(t, Tensor) for t in (self.state, first)) or (
                self.state.shape != first.shape):
            self.why, self.waits = 'returns something else than a state', False
            return out
        return _stand_in(part, self.form, True).forward(self.state)

    def see(self, same: bool) -> None:
        """See the first sum behind it."""
        if self.waits:
            self.waits = False
            self.why = None if same else (
                'computes no f alone: zeros from it leave a bias, a norm or '
                'another branch')


class _AtRest:
    """In the place of a step's norms: makes the sum the state, as f = 0."""

    f = None

    def __init__(self, x: Tensor):
        self.state: Tensor | None = x

    def see_branch(self, *args, **kwargs) -> None:
        """See the branch."""

    def see_sum(self, total: Tensor) -> None:
        """See the sum."""
        total.copy_(self.state)

    def hand_on(self, *args) -> None:
        """See what a run makes of the sum."""

    def settle(self) -> None:
        """Keep the state, for a branch that may still come."""


class _Seen(_AtRest):
    """Tells those who wait whether a sum is its state."""

    def __init__(self, x: Tensor, checks: Iterable[_PartCheck]):
        super().__init__(x)
        self.checks = checks

    def see_sum(self, total: Tensor) -> None:
        """See the sum."""
        for check in self.checks:
            check.see(torch.equal(total, self.state))


class _Zero(nn.Module):
    """An attention that stops its step."""

    def forward(self, x: Tensor, f: Tensor) -> Tensor:
        return f.new_zeros(())


@contextmanager
def _at_rest(steps: list[ResidualStep]) -> Iterator[None]:
    """Steps that tell themselves, with Δt = 0."""
    before = [step.attention for step in steps]
    for step in steps:
        step.attention = _Zero()
    try:
        yield
    finally:
        for step, attention in zip(steps, before):
            step.attention = attention


@contextmanager
def _no_zeros(blocks: Iterable[nn.Module]) -> Iterator[None]:
    """Random numbers for parameters of 0, as biases at their start."""
    before = [(m._parameters, key, p) for block in blocks
              for m in block.modules() for key, p in m._parameters.items()
              if p is not None and not p.any()]
    for parameters, key, p in before:
        parameters[key] = nn.Parameter(_fresh(p.detach()))
    try:
        yield
    finally:
        for parameters, key, p in before:
            parameters[key] = p


def _look(model: nn.Module, example: object) -> tuple[Arrangement, tuple]:
    """Find the steps of a model, and a call that it runs on."""
    error = 'nothing can be made up for a model of its class'
    for given in made_up(model, outermost=True) if example is None else (
            example, ):
        finder, call = Finder(model), call_of(given)
        try:
            _run(finder, call)
        except Exception as raised:
            error = f'{type(raised).__name__}: {raised}'
            continue
        return Arrangement(finder), call
    raise ValueError(
        f'{type(model).__name__} does not run on the example that its blocks '
        f'are to be tried with ({error}); give example= that it takes')


def _fresh(t: object) -> object:
    """A copy, which may be written to, and random numbers in place of zeros.

    Many functions leave 0 as it is, which shows nothing.
    """
    if not isinstance(t, Tensor):
        return t
    if t.is_floating_point() and not t.any():
        return torch.randn(
            t.shape, generator=torch.Generator().manual_seed(0)).to(t)
    return t.clone()


def _run(finder: Finder, call: tuple[tuple, dict],
         checks: Iterable[_Check] = ()) -> None:
    """Follow one pass in evaluation mode."""
    handles = []
    for check in checks:
        handles += [
            check.module.register_forward_pre_hook(
                check.enter, with_kwargs=True),
            check.module.register_forward_hook(check.leave, with_kwargs=True)]
    try:
        handles += finder.attach()
        with EAGER, in_mode(finder.model, False), torch.no_grad():
            finder.model(*map(_fresh, call[0]), **{
                key: _fresh(value) for key, value in call[1].items()})
    finally:
        for handle in handles:
            handle.remove()
