"""The steps of a model as data, as files have them, and steps made of it."""

from typing import Any

import torch
import torch.nn as nn

from mmstepnet.attentions import ATTENTIONS, build_attention
from mmstepnet.attentions.record import KEY, Recorded
from mmstepnet.generated import host_of
from mmstepnet.tracing.wrappers import name_modules, unwrap

from .branch import BranchStep, Place, Spot
from .fused_blocks import is_fusable, state_width
from .insert import Steps, build
from .removal import RemovedBlock, stage_asked_for, stand_in
from .residual import ResidualStep

Blocks = dict[str, dict[str, Any]]
"""Blocks that were changed, by name.

Each has its class, ``cls``. One with steps has ``places``, of the steps at
branches' ends, and ``steps``, the types and arguments of the attentions by the
names of the steps. One that was removed has ``removed``, the arguments of
:func:`~.removal.stand_in`.
"""


Modules = dict[str, nn.Module]
"""Modules by name."""

Shapes = dict[str, torch.Size]
"""Shapes of the tensors of an attention, by their keys in its state dict."""


class Stock:
    """What a model has of steps.

    The model is looked at once. Of a model that PEFT has wrapped it is the
    base model, with those copies of steps and attentions that run.

    Args:
        model (nn.Module): The model, in a wrapper or not.

    Attributes:
        names (dict[nn.Module, str]): Names of all modules. A wrapper has the
            name of the module that is in it.
        modules (dict[str, nn.Module]): The modules by name, without wrappers.
        classes (dict[str, str]): Their classes by name, of blocks those that
            they had before they were changed.
        blocks (dict[str, dict]): The blocks that were changed, see
            :data:`Blocks`.
        attentions (dict[str, dict]): The attentions of each block with
            steps, by their names in the model's state dict.

    Raises:
        ValueError: An attention could not be built again from its type and
            arguments.
    """

    def __init__(self, model: nn.Module):
        names = name_modules(model)
        self.names = names
        self.modules: Modules = {name: m for m, name in names.items()}
        peft: Any = self.modules['']
        if hasattr(peft, 'get_base_model'):
            names = name_modules(peft.get_base_model())
            self.names |= names
            self.modules = {name: m for m, name in names.items()}
        self.classes: dict[str, str] = {}
        self.blocks: Blocks = {}
        self.attentions: dict[str, Modules] = {}
        for name, block in self.modules.items():
            cls = host_of(block).__qualname__
            self.classes[name] = cls
            steps = _steps_in_use(block)
            if isinstance(block, RemovedBlock):
                self.blocks[name] = dict(
                    removed=[block.size, block.is_relu], cls=cls
                )
            elif steps:
                attentions = {}
                places = []
                records = {}
                for key, step in steps.items():
                    attention = in_use(step.attention)
                    whole_key = f'{name}.{key}.attention'
                    attentions[whole_key] = attention
                    records[key] = _record(attention)
                    if isinstance(step, BranchStep):
                        places.append(step.place)
                self.attentions[name] = attentions
                self.blocks[name] = dict(places=places, steps=records, cls=cls)


def in_use(module: nn.Module) -> nn.Module:
    """Of a module that PEFT trains copies of, the one that runs."""
    inner: Any = unwrap(module)
    copies = getattr(inner, 'modules_to_save', None)
    if not isinstance(copies, nn.ModuleDict):
        return inner
    if inner.active_adapters:
        return copies[inner.active_adapters[0]]
    return inner.original_module


def _steps_in_use(block: nn.Module) -> dict[str, Any]:
    """Steps of a block that have an attention, by their names in it."""
    steps: dict[str, Any] = {}
    is_wrapper = hasattr(block, 'modules_to_save')
    if is_wrapper or isinstance(block, nn.ModuleDict):
        return steps  # PEFT's copies of one step, whose block is another one
    for key, child in block.named_children():
        step = in_use(child)
        if isinstance(step, ResidualStep) and step.attention is not None:
            steps[key] = step
    return steps


def _record(attention: Any) -> dict[str, Any]:
    """Type and arguments of an attention, which is built of them again."""
    kind = getattr(attention, 'recorded_type', None)
    if kind in ATTENTIONS:
        record = attention.record()
        with torch.device('meta'):
            again = build_attention(record, attention.channels)
        if _shapes(again) == _shapes(attention):
            return record
    raise ValueError(
        f'a {type(attention).__name__} could not be built again from its type '
        f'and arguments: register its class in ATTENTIONS, save before fold, '
        f'make pruning permanent, and in FSDP1 save inside '
        f'summon_full_params'
    )


def _shapes(module: nn.Module) -> Shapes:
    tensors = tensors_of(module)
    return {key: t.shape for key, t in tensors.items()}


def fits(record: dict[str, Any], channels: int, shapes: Shapes) -> bool:
    """Whether the tensors of an attention would have some shapes.

    Args:
        record (dict[str, Any]): Its type and arguments.
        channels (int): Its channels.
        shapes (Shapes): The shapes.
    """
    try:
        with torch.device('meta'):
            attention = build_attention(record, channels)
    except ValueError:  # it does not take so few channels
        return False
    return _shapes(attention) == shapes


def width_of(record: dict[str, Any], shapes: Shapes) -> int | None:
    """Channels of an attention that has tensors of some shapes.

    Args:
        record (dict[str, Any]): Its type and arguments.
        shapes (Shapes): The shapes.

    Returns:
        int | None: Their number. None where no number, or several, give
        these shapes, as of one learned constant a block.
    """
    sizes = {size for shape in shapes.values() for size in shape}
    found = [size for size in sizes if fits(record, size, shapes)]
    return found[0] if len(found) == 1 else None


def width_here(block: nn.Module) -> int | None:
    """Channels of what a block without steps is given; None if unknown."""
    if is_fusable(block):
        return state_width(block)
    for layer in block.modules():
        for name in ('in_channels', 'in_features'):
            if hasattr(layer, name):
                return int(getattr(layer, name))
    return None


def tensors_of(module: nn.Module) -> dict[str, Any]:
    """State dict of a module, without the records of attentions."""
    state_dict = module.state_dict()
    for name, part in module.named_modules():
        if isinstance(part, Recorded):
            key = f'{name}.{KEY}'.lstrip('.')
            state_dict.pop(key, None)
    return state_dict


def build_steps(blocks: Blocks, stock: Stock) -> dict[str, Steps]:
    """Build the steps that a model lacks; the stock gets their attentions.

    Args:
        blocks (Blocks): Those that a file has.
        stock (Stock): The model, in which nothing is changed.

    Raises:
        ValueError: A block does not take such steps.
    """
    steps: dict[str, Steps] = {}
    for name, block in blocks.items():
        if 'steps' not in block or name in stock.blocks:
            continue
        module = stock.modules[name]
        steps[name] = _build_block(name, module, block)
        attentions = {}
        for place, attention in steps[name]:
            step = 'step' if place is None else place.name
            key = f'{name}.{step}.attention'
            attentions[key] = attention
        stock.attentions[name] = attentions
    return steps


def _build_block(name: str, block: nn.Module, saved: dict) -> Steps:
    """Build the steps of a block that has none."""
    records = saved['steps']
    if not saved['places']:
        if not is_fusable(block):
            raise ValueError(f'{name} is built otherwise than in the file')
        attention = build(records['step'], name, block)
        return [(None, attention)]
    steps = []
    for key, state, branch, *axes in saved['places']:
        x_spot = Spot(*state)
        f_spot = Spot(*branch)
        place = Place(key, x_spot, f_spot, *axes)
        _check_place(name, block, place)
        attention = build(records[key], name, block, place)
        steps.append((place, attention))
    return steps


def _check_place(name: str, block: nn.Module, place: Place) -> None:
    """See that a block has the modules and the width of a place."""
    for module in (place.state.module, place.branch.module):
        try:
            block.get_submodule(module)
        except AttributeError as error:
            raise ValueError(
                f'{name} has no module {module!r}, at which its step stands '
                f'in the file'
            ) from error
    if not any(place.width in p.shape for p in block.parameters()):
        raise ValueError(
            f'{name} is built otherwise than in the file: it has no layer of '
            f'{place.width} channels'
        )


def build_stand_ins(blocks: Blocks, stock: Stock) -> dict[str, RemovedBlock]:
    """Build what stands in the places of blocks that a model has still.

    Args:
        blocks (Blocks): Those that a file has.
        stock (Stock): The model, in which nothing is changed. It no longer
            has the attentions of these blocks.

    Raises:
        ValueError: A backbone of transformers asks for a block.
    """
    stand_ins = {}
    for name, block in blocks.items():
        own = stock.blocks.get(name, {})
        if 'removed' not in block or 'removed' in own:
            continue
        stage = stage_asked_for(stock.modules, name)
        if stage is not None:
            raise ValueError(
                f'it lacks {name}, which makes the stage {stage!r}; take that '
                f'out of out_features of the model'
            )
        module = stock.modules[name]
        stand_ins[name] = stand_in(module, *block['removed'])
        stock.attentions.pop(name, None)
    return stand_ins
