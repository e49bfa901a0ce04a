"""Blocks taken out of a network: what is left computes what f = 0 would."""

import copy
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch.nn as nn
from torch import Tensor

from mmstepnet.generated import Generated, generated_class, host_of
from mmstepnet.messages import shorten
from mmstepnet.tracing import Arrangement, Finder, Selection, match, unwrap
from mmstepnet.tracing.selection import is_within
from mmstepnet.tracing.trace import Passage, Trace
from mmstepnet.tracing.wrappers import name_modules

from .branch import StepHook
from .modules import check_unsharded, modules_by_name
from .spots import run_on
from .tail import fused


def remove_blocks(
    model: nn.Module,
    names: Selection,
    example: Tensor | tuple | dict | None = None,
) -> list[str]:
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
            and its branches, or a ReLU of it; what it returns is asked for by
            name, by ``out_features`` of a backbone of transformers; or one of
            ``names`` means no residual block. The model is left as it was.
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
    exchange(name_modules(model), removed)
    return list(removed)


@contextmanager
def without_blocks(
    model: nn.Module, removed: dict[str, 'RemovedBlock']
) -> Iterator[None]:
    """Run a model without some blocks, which come back afterwards."""
    undo = exchange(name_modules(model), removed)
    try:
        yield
    finally:
        for children, key, module in undo:
            children[key] = module


def exchange(
    names: dict[nn.Module, str], others: dict[str, 'RemovedBlock']
) -> list[tuple[dict, str, nn.Module]]:
    """Put modules in the places of those named, wrappers included.

    Args:
        names (dict[nn.Module, str]): All modules, see
            :func:`~mmstepnet.tracing.wrappers.name_modules`.
        others (dict[str, RemovedBlock]): What comes, by name.

    Returns:
        list[tuple]: Children of a module, a name among them, and the module
        that stood there: each can be put back.
    """
    outermost = {name: m for m, name in reversed(names.items())}
    new = {outermost[name]: other for name, other in others.items()}
    undo = [
        (parent._modules, key, child)
        for parent in names
        for key, child in parent._modules.items()
        if child in new
    ]
    for children, key, child in undo:
        children[key] = new[child]
    return undo


def prepare_removal(
    model: nn.Module, names: Selection | None, example: object = None
) -> dict[str, 'RemovedBlock']:
    """Make modules for the places of blocks, by name; nothing is changed.

    Args:
        model (nn.Module): The model.
        names (optional): See :func:`remove_blocks`. None is all that may go.
        example (optional): See :func:`remove_blocks`.
    """
    check_unsharded(name_modules(model))
    model = unwrap(model)
    modules = modules_by_name(model)
    blocks, ways = run_on(example, model, _passes, 2)[0]
    chosen = {} if names is None else match(modules, names)
    for item, found in chosen.items():
        if not any(is_within(name, found) for name in blocks):
            raise ValueError(
                f'blocks={item!r} means no residual block of the model; its '
                f'blocks are {shorten([*blocks])}'
            )
    selected = set().union(*chosen.values())
    meant = [
        name for name in blocks if names is None or is_within(name, selected)
    ]
    removed = {}
    refused = []
    for name in meant:
        way, *others = ways.get(name, [None])
        together = {name} if names is None else {*meant}
        if blocks[name]:
            refused.append(f'{name} projects its identity')
        elif way is None or others:
            refused.append(
                f'{name} returns something else than the sum of '
                f'its state and its branches, or a ReLU of it'
            )
        elif _is_counted(modules, name, together):
            refused.append(
                f'{name} has a number in a cache, and a layer behind it stays'
            )
        elif stage := stage_asked_for(modules, name):
            refused.append(
                f'{name} makes what out_features names '
                f'{stage!r}; leave that out there'
            )
        else:
            removed[name] = stand_in(modules[name], *way)
    if refused and names is not None:
        raise ValueError(f'{type(model).__name__}: {"; ".join(refused)}')
    return removed


def _is_counted(
    modules: dict[str, nn.Module], block: str, removed: set[str]
) -> bool:
    """Whether a cache knows a layer by its number, and one behind it."""
    beside = f'{block.rpartition(".")[0]}.'.lstrip('.')
    own: list[int] = []
    staying: list[int] = []
    for name, module in modules.items():
        number = getattr(module, 'layer_idx', None)
        if not isinstance(number, int) or not name.startswith(beside):
            continue
        if is_within(name, {block}):
            own.append(number)
        if not is_within(name, removed):
            staying.append(number)
    return bool(own and staying) and max(staying) > min(own)


def stage_asked_for(modules: dict[str, nn.Module], name: str) -> str | None:
    """The one of a backbone's ``out_features`` that a block makes, if any.

    Backbones of transformers whose layers are in one sequence, as ViTs, call
    what layer k returns their stage k + 1. Others count stages of blocks.
    """
    for owner, backbone in modules.items():
        stages = getattr(backbone, 'stage_names', None)
        if stages and is_within(name, {owner}):
            numbers = [
                int(part)
                for part in name.removeprefix(owner).split('.')
                if part.isdigit()
            ]
            if len(numbers) == 1 and numbers[0] + 1 < len(stages):
                made = stages[numbers[0] + 1]
                if made in getattr(backbone, 'out_features', ()):
                    return made
    return None


class Way(NamedTuple):
    """A module's way from its state to its result, by steps."""

    size: int
    """Elements of the tuple that it returns; 0 is no tuple."""
    is_relu: bool
    """Whether a ReLU comes last."""


def _ways(trace: Trace) -> dict[str, set[Way | None]]:
    """Ways of all calls of each module.

    None is that of a call which returns something else than its state behind
    steps.
    """
    ways: dict[str, set[Way | None]] = defaultdict(set)
    for passage in trace.passages:
        ways[passage.name].add(_way(trace, passage))
    return ways


def _way(trace: Trace, passage: Passage) -> Way | None:
    state = passage.given
    out = passage.returned
    if (
        state is None
        or out is None
        or state.shape != out.shape
        or not passage.is_alone
    ):
        return None
    kinds = trace.kinds_between(state, out)
    if kinds is None:
        return None
    is_relu = kinds[:1] == ['relu']  # the last operation is the first
    steps = kinds[1:] if is_relu else kinds
    return Way(passage.size, is_relu) if {*steps} <= {'step'} else None


def _passes(
    model: nn.Module, args: tuple, kwargs: dict
) -> tuple[dict[str, bool], dict[str, set]]:
    """Whether blocks project their identity, and ways through all modules.

    After a pass in evaluation mode comes one with the blocks in training mode.
    """
    if not next(model.parameters()).is_meta:
        model = copy.deepcopy(model)  # statistics may change
    finder = Finder(model, traces=True)
    with finder.following(), fused(False):
        model(*args, **kwargs)
        ways = _ways(finder.trace)
        arrangement = Arrangement(finder)
        projects = dict.fromkeys(arrangement.by_block(), False)
        for _, added, block in arrangement.named:
            if block and not added.state:
                projects[block.name] = True
        blocks = {}
        for name in projects:
            if not any(other.startswith(f'{name}.') for other in projects):
                blocks[name] = projects[name]
                arrangement.modules[name].train()
        model(*args, **kwargs)
    trained = _ways(finder.trace)
    return blocks, {name: ways[name] | trained[name] for name in ways}


class RemovedBlock(Generated):
    """A block without its steps: it returns the state that it is given.

    Of what the block was, it keeps its class, the form of what it returns,
    its last ReLU, hooks that others have registered, and attributes that are
    no tensors, modules or methods of the block.
    """

    size: int
    is_relu: bool

    train = nn.Module.train  # the host's may need what is gone

    def forward(self, *args, **kwargs) -> Tensor | tuple:
        """Return the first argument, behind the block's ReLU if it had one."""
        state = next(iter((*args, *kwargs.values())))
        state = state.relu() if self.is_relu else state
        return (state, *[None] * (self.size - 1)) if self.size else state

    def _get_name(self) -> str:
        return f'Removed{self.host.__name__}'


HOOKS = (
    '_forward_hooks',
    '_forward_hooks_with_kwargs',
    '_forward_hooks_always_called',
    '_forward_pre_hooks',
    '_forward_pre_hooks_with_kwargs',
    '_backward_hooks',
    '_backward_pre_hooks',
    '_is_full_backward_hook',
)
"""Attributes of a module that hold what others have registered to be run."""


def stand_in(block: nn.Module, size: int, is_relu: bool) -> RemovedBlock:
    """Make a module for the place of a block.

    Args:
        block (nn.Module): The block.
        size (int): Elements of the tuple that it returns; 0 is no tuple.
        is_relu (bool): Whether its last ReLU is kept.
    """
    cls = generated_class(RemovedBlock, host_of(block))
    removed: Any = cls.__new__(cls)
    nn.Module.__init__(removed)
    own = vars(removed)
    not_taken = {*own, 'forward', '_compiled_call_impl'}
    for key, value in vars(block).items():
        # As the block's own forward, where accelerate keeps it.
        is_method = getattr(value, '__self__', None) is block
        if key in HOOKS:
            own[key] = _without_steps(value)
        elif not (key in not_taken or is_method or isinstance(value, Tensor)):
            own[key] = value
    own.update(size=size, is_relu=is_relu)
    return removed.train(block.training)


def _without_steps(hooks: Any) -> Any:
    """Hooks of a block without those of its steps.

    If there are none, they are the same object: who has registered a hook
    can still remove it.
    """
    if not isinstance(hooks, dict):
        return hooks
    others = type(hooks)()
    for key, hook in hooks.items():
        if not isinstance(hook, StepHook):
            others[key] = hook
    return others if len(others) < len(hooks) else hooks
