"""The layers that alone give the branches that steps scale, found by running.

A hook on each layer that could take in a factor sees what it returns, and a
dispatch mode counts who reads that memory. A layer gives a branch f where f
is what it returned, seen in any way, and the step is the only one to read it.
"""

from collections import Counter, defaultdict
from collections.abc import Collection
from functools import partial
from typing import Any

import torch
import torch.nn as nn
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mmstepnet.tracing import hooked, tensors, uncompiled
from mmstepnet.tracing.operations import describe_operation
from mmstepnet.tracing.tags import Tag, Tags, is_real

from .branch import BranchStep, StepHook
from .modules import modules_by_name
from .residual import ResidualStep
from .spots import run_on
from .tail.dispatch import FROZEN

CONVOLUTIONS = nn.Conv1d, nn.Conv2d, nn.Conv3d
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
TOKENS = nn.Linear, nn.LayerNorm
"""Layers whose channels are the last axis."""

NAMED = FROZEN, ('timm.layers.norm_act', 'BatchNormAct2d')
"""Norms of others, by module and name of the class."""


def is_scalable(layer: Any, model: nn.Module) -> bool:
    """Whether weights times a factor give the output times this factor.

    And nobody else's output: neither the layer nor a weight has two owners.

    Args:
        layer (nn.Module): A module.
        model (nn.Module): The model that it is in.
    """
    if not _is_known(layer) or getattr(layer, 'weight', None) is None:
        return False
    hooks = (
        *layer._forward_hooks.values(),
        *layer._forward_pre_hooks.values(),
    )
    if 'forward' in vars(layer) or not all(
        isinstance(hook, StepHook) for hook in hooks
    ):
        return False
    owners: Counter[int] = Counter()
    places: Counter[nn.Module | None] = Counter()
    for module in model.modules():
        owners.update(map(id, module._parameters.values()))
        owners.update(map(id, module._buffers.values()))
        places.update(module._modules.values())
    has_own_weights = owners[id(layer.weight)] < 2 and (
        layer.bias is None or owners[id(layer.bias)] < 2
    )
    return has_own_weights and places[layer] < 2


def _is_known(layer: Any) -> bool:
    """Whether it is linear in its weights, of a class that is nothing else."""
    kind = type(layer)
    if kind is nn.LayerNorm:
        return len(layer.normalized_shape) == 1
    return (
        kind in (*CONVOLUTIONS, *NORMS, *TOKENS)
        or (kind.__module__, kind.__name__) in NAMED
        and all(type(part) is nn.Identity for part in layer.children())
    )


def find_givers(
    model: nn.Module, steps: Collection[ResidualStep], example: object
) -> dict[ResidualStep, nn.Module]:
    """Find the layer that alone gives the branch of each of some steps.

    Args:
        model (nn.Module): A model in evaluation mode.
        steps (Collection[ResidualStep]): The steps.
        example (optional): What the model is called with, see
            :func:`run_on`. With None its parts are tried, too.

    Returns:
        dict[ResidualStep, nn.Module]: Layers of those steps that have one.

    Raises:
        ValueError: The model does not run on the example.
    """
    found: dict[ResidualStep, nn.Module | None] = {}
    failed: ValueError | None = None
    for name, part in modules_by_name(model).items():
        inside = set(part.modules())
        here = [step for step in steps if step in inside and step not in found]
        if not here:
            continue
        try:
            (results,) = run_on(
                example,
                part,
                partial(_follow, steps=here),
                None,
                outermost=name in ('', 'backbone'),
            )
            found |= results
        except ValueError as error:
            failed = failed or error
            if example is not None:
                break
    if failed is not None and not found:
        raise failed
    return {step: layer for step, layer in found.items() if layer is not None}


class _Reads(TorchDispatchMode):
    """Counts the operations that read each piece of memory."""

    # A mode that does not say so may not see them.
    supports_higher_order_operators = True

    def __init__(self):
        super().__init__()
        self.tags = Tags()  # while they live no other memory is taken for it
        self.count: Counter = Counter()

    def __torch_dispatch__(
        self,
        func: Any,
        types: tuple,
        args: tuple = (),
        kwargs: dict | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if not describe_operation(func).views:
            self.count.update(self.memory(*args, kwargs))
        return func(*args, **kwargs)

    def memory(self, *values: object) -> set[Tag]:
        """Pieces of memory of tensors, also of those in lists and dicts."""
        return {self.tags.make(t) for t in tensors(*values) if is_real(t)}


@torch.no_grad()
def _follow(
    model: nn.Module,
    args: tuple,
    kwargs: dict,
    steps: Collection[ResidualStep],
) -> dict[ResidualStep, nn.Module | None]:
    """Layers that give the branches of the steps that ran, or None.

    What the layers return is kept until then.
    """
    returned: dict[nn.Module, list[Any]] = defaultdict(list)
    branches: dict[Any, list[Tensor]] = defaultdict(list)

    def keep_output(layer: nn.Module, args: tuple, out: Any) -> None:
        returned[layer].append(out)

    def keep_branch(step: Any, x: Tensor, f: Tensor, *_: Any) -> None:
        branches[step].append(f)

    handles: list = [uncompiled.enter()]
    for layer in filter(_is_known, model.modules()):
        # Before the hook of a step, which returns the scaled branch.
        handles.append(layer.register_forward_hook(keep_output, prepend=True))
    for step in steps:
        handles.append(step.observe(keep_branch))
    reads = _Reads()
    with hooked(handles), reads:
        out = model(*args, **kwargs)
    once = {tag for tag, count in reads.count.items() if count == 1}
    once -= reads.memory(out)

    def gives(layer: Any, step: ResidualStep) -> bool:
        """Whether a layer, which runs once, gives f to a step alone."""
        out, *again = returned[layer]
        f, *others = branches[step]
        own = reads.memory(f, layer.weight, layer.bias)
        if again or others or not own <= once:
            return False
        channels_of_f = _channels(f, _axis_of_step(step))
        axis = _axis_of_layer(layer, out)
        return channels_of_f == _channels(out, axis)

    givers: dict[ResidualStep, nn.Module | None] = {}
    for step in branches:
        givers[step] = None
        for layer in returned:
            if gives(layer, step):
                givers[step] = layer
                break
    return givers


def _channels(t: Tensor, axis: int) -> tuple:
    """Equal for views of the same values with the same axis of channels."""
    return *Tags.view(t), t.shape[axis], t.stride(axis)


def _axis_of_step(step: ResidualStep) -> int:
    return step.place.channels if isinstance(step, BranchStep) else 1


def _axis_of_layer(layer: Any, out: Tensor) -> int:
    if isinstance(layer, CONVOLUTIONS):  # (N, C, ...) or (C, ...)
        return out.dim() - 1 - len(layer.kernel_size)
    if isinstance(layer, TOKENS):
        return out.dim() - 1
    return 1
