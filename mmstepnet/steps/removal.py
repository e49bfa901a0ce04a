"""Blocks taken out of a network: what is left computes what f = 0 would."""

import copy
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.nn as nn
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from .examples import call_of, guess_inputs, on_meta
from .finding import (
    Arrangement,
    Finder,
    Selection,
    hooked,
    in_mode,
    select,
    uncompiled,
    unwrap,
)
from .finding.operations import describe_operation
from .finding.selection import is_within
from .finding.tags import is_real
from .finding.wrappers import name_modules
from .generated import Generated, generated_class, host_of
from .modules import check_unsharded, modules_by_name
from .spots import steps_by_block
from .tail import fused


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
        ValueError: A block returns something else than the sum of its state
            and its branches, or a ReLU of it; or one of ``names`` means no
            residual block. The model is left as it was.
        RuntimeError: The model is in DDP or FSDP.

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
    exchange(model, removed)
    return list(removed)


@contextmanager
def without_blocks(model: nn.Module,
                   removed: dict[str, 'RemovedBlock']) -> Iterator[None]:
    """Run a model without some blocks, which come back afterwards."""
    undo = exchange(model, removed)
    try:
        yield
    finally:
        for children, key, module in undo:
            children[key] = module


def exchange(model: nn.Module, others: dict[str, 'RemovedBlock']
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
    blocks, paths = _run(model, example)
    meant = set(blocks)
    if names is not None:
        chosen = select(modules, names)
        for item, found in chosen.items():
            if not any(is_within(name, found) for name in blocks):
                raise ValueError(
                    f'blocks={item!r} means no residual block of the model; '
                    f'find_steps shows where its steps are')
        meant = {name for name in blocks
                 if is_within(name, set().union(*chosen.values()))}
    removed, refused = {}, []
    for name in filter(meant.__contains__, blocks):
        count, ways = blocks[name], paths[name]
        if not count:
            refused.append(f'{name} projects its identity')
        elif not ways:
            refused.append(f'{name} has a forward that no pass calls')
        elif len(ways) > 1 or None in ways or {n for n, *_ in ways} != {count}:
            refused.append(f'{name} returns something else than the sum of '
                           f'its state and its branches, or a ReLU of it')
        elif _is_counted(modules, name, {name} if names is None else meant):
            refused.append(f'{name} has a number in a cache, and a layer '
                           f'behind it stays')
        else:
            removed[name] = stand_in(modules[name], *ways.pop()[1:])
    if refused and names is not None:
        raise ValueError(f'{type(model).__name__}: {"; ".join(refused)}')
    return removed


def _is_counted(modules: dict[str, nn.Module], name: str,
                removed: set[str]) -> bool:
    """Whether a cache knows a layer by its number, and one behind it."""
    numbers = {n: m.layer_idx for n, m in modules.items() if isinstance(
        getattr(m, 'layer_idx', None), int)
        and n.startswith(f'{name.rpartition(".")[0]}.'.lstrip('.'))}
    own: list[Any] = [k for n, k in numbers.items() if is_within(n, {name})]
    return any(k > min(own) for n, k in numbers.items()
               if own and not is_within(n, removed))


class _Paths(TorchDispatchMode):
    """Follows the sums and ReLUs between a module's state and its output.

    Attributes:
        ways (dict): For each run of a module the number of sums, the number
            of elements of the tuple that it returns, 0 where it returns its
            state alone, and whether a ReLU comes last; or None, where it
            returns something else.
    """

    def __init__(self):
        super().__init__()
        self.ways: dict[nn.Module, list[tuple | None]] = defaultdict(list)
        self.made: dict[tuple, tuple[bool, list[tuple]]] = {}
        self.kept: list[Tensor] = []  # so that no other gets its memory
        self.given: dict[nn.Module, Any] = {}

    def __torch_dispatch__(self, func: Any, types: tuple, args: tuple = (),
                           kwargs: dict | None = None) -> Any:
        operation = describe_operation(func)
        states = [x for x, _ in operation.operands(args)]
        is_relu = operation.name == 'relu'
        before = list(map(_memory, args[:1] if is_relu else states))
        out = func(*args, **kwargs or {})
        if before and is_real(out):
            # What writes counts it as a version when this has returned.
            made = _memory(out, operation.writes)
            self.made[made] = is_relu, before
            self.kept.append(out)
        return out

    def enter(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        """Take down the state, the first argument."""
        x: Any = next(iter((*args, *kwargs.values())), None)
        self.given[module] = (x, _memory(x)) if is_real(x) else (None, None)

    def leave(self, module: nn.Module, args: tuple, out: Any) -> None:
        """See how a module comes from its state to what it returns."""
        x, start = self.given.pop(module)
        size = len(out) if type(out) is tuple else 0
        first: Any = out[0] if size else out
        count = None
        if x is not None and is_real(first) and x.shape == first.shape and all(
                t is None for t in (out[1:] if size else ())):
            end = _memory(first)
            is_relu, before = self.made.get(end, (False, []))
            count = self._count(before[0] if is_relu else end, start, set())
        self.ways[module].append(
            None if count is None else (count, size, is_relu))

    def _count(self, end: tuple, start: tuple, seen: set) -> int | None:
        """Number of sums on the way back from a result to a state."""
        if end == start:
            return 0
        is_relu, before = self.made.get(end, (True, []))
        if end in seen or is_relu:
            return None
        seen.add(end)
        counts = [self._count(state, start, seen) for state in before]
        return next((n + 1 for n in counts if n is not None), None)


def _memory(t: Tensor, writes: int = 0) -> tuple:
    """Equal for views of one memory, as long as nobody writes to it."""
    version = 0 if t.is_inference() else t._version + writes
    return (t.untyped_storage()._cdata, t.storage_offset(), t.numel(),
            version)


def _run(model: nn.Module, example: object
         ) -> tuple[dict[str, int], dict[str, set]]:
    """Blocks with the number of their steps, and ways through all modules.

    On the meta device or, where the model does not run there, with a copy.
    """
    error: Any = 'nothing can be guessed for a model of its class'
    for given in guess_inputs(model, outermost=True) if example is None else (
            example, ):
        for device in 'meta', None:
            try:
                one = model if device else copy.deepcopy(model)
                with on_meta(one) if device else nullcontext():
                    return _passes(one, *call_of(given, 2, device))
            except Exception as raised:
                error = f'{type(raised).__name__}: {raised}'
    raise ValueError(
        f'{type(model).__name__} does not run on the example that its blocks '
        f'are to be tried with ({error}); give example= that it takes')


def _passes(model: nn.Module, args: tuple, kwargs: dict
            ) -> tuple[dict[str, int], dict[str, set]]:
    """A pass in evaluation mode, and one with the blocks in training mode."""
    finder, paths = Finder(model), _Paths()
    handles = [handle for m in model.modules() for handle in (
        m.register_forward_pre_hook(paths.enter, with_kwargs=True),
        m.register_forward_hook(paths.leave))]
    with (hooked(handles), uncompiled, in_mode(model, False), torch.no_grad(),
          torch.random.fork_rng([]), fused(False)):
        with hooked(finder.attach()), paths:
            model(*args, **kwargs)
        arrangement = Arrangement(finder)
        counts = {name: len(sums)
                  for name, sums in steps_by_block(arrangement).items()}
        counts |= {place[1].name: 0 for _, found, place in arrangement.named
                   if place and not found.state}
        blocks = {name: count for name, count in counts.items() if not any(
            other.startswith(f'{name}.') for other in counts)}
        for name in blocks:
            arrangement.modules[name].train()
        with paths:
            model(*args, **kwargs)
    ways = defaultdict(set)
    for module, found in paths.ways.items():
        ways[finder.names[module]].update(found)
    return blocks, ways


class RemovedBlock(Generated):
    """A block without its steps: it returns the state that it is given.

    Of what the block was, it keeps its class, the form of what it returns,
    its last ReLU, and attributes that are no tensors, modules or hooks.
    """

    size: int
    is_relu: bool

    def forward(self, *args, **kwargs) -> Tensor | tuple:
        """Return the first argument, behind the block's ReLU if it had one."""
        state = next(iter((*args, *kwargs.values())))
        state = state.relu() if self.is_relu else state
        return (state, *[None] * (self.size - 1)) if self.size else state

    def _get_name(self) -> str:
        return f'Removed{self.host.__name__}'

    def extra_repr(self) -> str:
        """Say nothing: what the host would say it may have lost."""
        return ''


def stand_in(block: nn.Module, size: int, is_relu: bool) -> RemovedBlock:
    """What stands in the place of a block.

    Args:
        block (nn.Module): The block.
        size (int): Elements of the tuple that it returns; 0 is no tuple.
        is_relu (bool): Whether its last ReLU is kept.
    """
    cls = generated_class(RemovedBlock, host_of(block))
    removed: Any = cls.__new__(cls)
    nn.Module.__init__(removed)
    own = vars(removed)
    own.update({key: value for key, value in vars(block).items()
                if key not in (*own, 'forward', '_compiled_call_impl')
                and not isinstance(value, Tensor)},
               size=size, is_relu=is_relu)
    return removed.train(block.training)
