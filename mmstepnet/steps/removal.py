"""Blocks taken out of a network: what is left computes what f = 0 would."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.nn as nn
from torch import Tensor

from .examples import call_of, made_up, on_meta
from .finding import (
    EAGER,
    Arrangement,
    Run,
    Selection,
    Sum,
    hooked,
    in_mode,
    select,
    unwrap,
)
from .finding.operations import describe_operation
from .finding.selection import is_within
from .finding.tags import is_real
from .finding.wrappers import name_modules
from .fused_blocks import FusedBlock
from .generated import Generated, generated_class
from .modules import check_unsharded, modules_by_name
from .residual import ResidualStep
from .spots import SpotFinder, steps_by_block

Form = tuple[type, int] | None
"""What a block returns: its state alone, or a tuple or list of so many, of
which the state is the first and the others are None."""


def remove_blocks(model: nn.Module, names: Selection,
                  example: Tensor | tuple | dict | None = None) -> list[str]:
    r"""Take residual blocks out of a model, in place.

    What is left is :math:`x_{t+1} = x_t`, as if f were 0 in

    .. math::
        x_{t+1} = \mathrm{act}(x_t + f(x_t) \otimes \Delta t),

    with the block's own last ReLU, if it has one. Parameters and operations
    of the blocks go; containers keep their length and other modules their
    keys. To load what was saved then, call this on a new model, before a
    strict ``load_state_dict``. Build optimizers afterwards. Nothing brings
    the blocks back: copy the model first if you need them.

    Args:
        model (nn.Module): The model.
        names (str | type | Sequence): The blocks, or modules that contain
            them, as ``blocks=`` of :func:`insert_steps`.
        example (Tensor | tuple | dict, optional): What the model is called
            with, see :func:`insert_steps`. Defaults to None.

    Returns:
        list[str]: Names of what was removed.

    Raises:
        ValueError: A block does more than to add to its state and to apply a
            ReLU, each with the reason, or one of ``names`` means no residual
            block. The model is left as it was.

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
    modules = modules_by_name(model)
    passes = _run(model, example)
    blocks = passes[0].blocks()
    if names is not None:
        chosen = select(modules, names)
        for item, meant in chosen.items():
            if not any(is_within(name, meant) for name in blocks):
                raise ValueError(
                    f'blocks={item!r} means no residual block of the model; '
                    f'find_steps shows where its steps are')
        blocks = {name: sums for name, sums in blocks.items()
                  if is_within(name, set().union(*chosen.values()))}
    removed, refused = {}, []
    for name in blocks:
        try:
            forms = {one.form_of(name) for one in passes}
            if len(forms) > 1:
                raise RefusedError('returns something else in training mode')
            _check_place(model, modules, name, set(blocks if names else [name])
                         )
            removed[name] = _stand_in(modules[name], *forms.pop())
        except RefusedError as error:
            refused.append(f'{name} {error}')
    if refused and names is not None:
        raise ValueError(f'{type(model).__name__}: {"; ".join(refused)}')
    return removed


class RefusedError(ValueError):
    """A block may not go; says why."""


def _check_place(model: nn.Module, modules: dict[str, nn.Module], name: str,
                 removed: set[str]) -> None:
    """Refuse a block that somebody else counts on."""
    if any(n == name and (hasattr(m, '_orig_mod')
                          or m._compiled_call_impl is not None)
           for m, n in name_modules(model).items()):
        raise RefusedError('is compiled by itself, and would go on to run; '
                           'remove it before')
    numbers = {n: index for n, m in modules.items() if isinstance(
        index := getattr(m, 'layer_idx', None), int)}
    own = [index for n, index in numbers.items() if is_within(n, {name})]
    left = [index for n, index in numbers.items() if not is_within(n, removed)]
    if own and max(left, default=-1) > min(own):
        raise RefusedError('has a number in a cache, which would miss it; '
                           'only the last layers can go')


class _RemovalFinder(SpotFinder):
    """A finder that follows a block's state from its input to its output."""

    def forget(self) -> None:
        """Forget the last pass."""
        super().forget()
        self.steps: dict[Sum, list] = {}  # memory of the state and of the sum
        self.relus: dict[tuple, tuple] = {}
        self.given: dict[str, tuple | None] = {}
        self.returned: dict[str, tuple[Any, Form, tuple]] = {}

    def blocks(self) -> dict[str, list[Sum]]:
        """Sums of the blocks that hold no others; none where it projects."""
        arrangement = Arrangement(self)
        found = steps_by_block(arrangement)
        for _, one, place in arrangement.named:
            if place and not one.state:
                found[place[1].name] = []
        self.found = {name: sums for name, sums in found.items() if not any(
            other.startswith(f'{name}.') for other in found)}
        return self.found

    def form_of(self, name: str) -> tuple[Form, bool]:
        """What a block returns, and whether a ReLU comes last.

        Raises:
            RefusedError: It does more than to add to its state.
        """
        sums = self.found.get(name)
        if not sums:
            raise RefusedError('projects its identity')
        if name not in self.returned:
            raise RefusedError('has a forward that no pass calls')
        memory: Any = self.given[name]
        activation = None
        for found in sums:
            state, total = self.steps[found]
            if activation is not None or state != memory or (
                    len(found.ordinals) > 1):
                raise RefusedError('changes its state before it adds')
            memory = total
            if found.part is not None:
                step: Any = unwrap(found.owner.module._modules[found.part])
                activation = None if type(step.activation) is nn.Identity else (
                    type(step.activation))
        out, form, shape = self.returned[name]
        if shape != sums[0].shape:
            raise RefusedError('returns something else than its state')
        is_relu = self.relus.get(out) == memory or activation is nn.ReLU
        if not is_relu and (out != memory or activation is not None):
            raise RefusedError(
                f'applies {sums[-1].activation or activation} to the sum'
                if sums[-1].activation or activation else
                'returns something else than its state')
        return form, is_relu

    def _begin(self, operation: Any, owner: Run, x: Tensor,
               *args: Any) -> Sum | None:
        state = _memory(x)
        found = super()._begin(operation, owner, x, *args)
        if found is not None:
            self.steps.setdefault(found, [state, None])
        return found

    def _observe(self, module: ResidualStep, x: Tensor, *args: Any) -> None:
        state = _memory(x)
        count = len(self.sums)
        super()._observe(module, x, *args)
        for found in self.sums[count:]:
            self.steps[found] = [state, _memory(args[-1])]

    def _conclude(self, found: Sum, out: Tensor) -> None:
        super()._conclude(found, out)
        if found in self.steps:
            self.steps[found][1] = _memory(out)

    def __torch_dispatch__(self, func: Any, types: tuple, args: tuple = (),
                           kwargs: dict | None = None) -> Any:
        before = _memory(args[0]) if describe_operation(
            func).name == 'relu' else None
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if before is not None:
            self.relus[_memory(out)] = before
        return out

    def _see_given(self, module: nn.Module, args: tuple,
                   kwargs: dict) -> None:
        super()._see_given(module, args, kwargs)
        first = next(iter((*args, *kwargs.values())), None)
        self.given[self.names[module]] = (
            _memory(first) if is_real(first) else None)

    def _see_returned(self, module: nn.Module, args: tuple,
                      out: Any) -> None:
        super()._see_returned(module, args, out)
        form, first = None, out
        if type(out) in (tuple, list) and out and not any(
                t is not None for t in out[1:]):
            form, first = (type(out), len(out)), out[0]
        if is_real(first):
            self.returned[self.names[module]] = (
                _memory(first), form, tuple(first.shape))


def _memory(t: Tensor) -> tuple:
    """Equal for views of one memory, as long as nobody writes to it."""
    version = 0 if t.is_inference() else t._version
    return (t.untyped_storage()._cdata, t.storage_offset(), t.numel(),
            version)


def _run(model: nn.Module, example: object) -> list[_RemovalFinder]:
    """Passes in evaluation and in training mode.

    On the meta device, or, where the model does not run there, with a copy.
    """
    error: Any = 'nothing can be guessed for a model of its class'
    for given in made_up(model, outermost=True) if example is None else (
            example, ):
        for device in 'meta', None:
            try:
                one = model if device else copy.deepcopy(model)
                with on_meta(one) if device else nullcontext():
                    return [_pass(one, given, device, training)
                            for training in (False, True)]
            except Exception as raised:
                error = f'{type(raised).__name__}: {raised}'
    raise ValueError(
        f'{type(model).__name__} does not run on the example that its blocks '
        f'are to be tried with ({error}); give example= that it takes')


def _pass(model: nn.Module, example: object, device: str | None,
          training: bool) -> _RemovalFinder:
    args, kwargs = call_of(example, 2 if device else None, device)
    finder = _RemovalFinder(model, ())
    with (hooked(finder.attach()), EAGER, in_mode(model, training),
          torch.no_grad(), torch.random.fork_rng([])):
        model(*args, **kwargs)
    finder.blocks()
    return finder


class RemovedBlock(Generated):
    """A block without its steps: it returns the state that it is given.

    Of what the block was, it keeps the arguments, the form of what it
    returns, its last ReLU, hooks and attributes that are no tensors or
    modules.
    """

    form: Form
    is_relu: bool

    def forward(self, *args, **kwargs) -> Tensor | tuple | list:
        """Return the first argument, behind the block's ReLU if it had one."""
        state = next(iter((*args, *kwargs.values())))
        if self.is_relu:
            state = state.relu()
        if self.form is None:
            return state
        cls, size = self.form
        return cls([state, *[None] * (size - 1)])

    def _get_name(self) -> str:
        return f'Removed{self.host.__name__}'

    def extra_repr(self) -> str:
        """Say nothing: what the host would say it may have lost."""
        return ''


def _stand_in(block: nn.Module, form: Form, is_relu: bool) -> Any:
    host = block.host if isinstance(block, FusedBlock) else type(block)
    removed = generated_class(RemovedBlock, host).__new__(
        generated_class(RemovedBlock, host))
    vars(removed).update(
        {key: value for key, value in vars(block).items()
         if not isinstance(value, Tensor) and key != 'forward'},
        _parameters={}, _buffers={}, _modules={},
        _non_persistent_buffers_set=set(), form=form, is_relu=is_relu)
    return removed
