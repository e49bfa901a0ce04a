"""Residual steps in a model that exists, of whatever library."""

import copy
import logging
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn as nn
from torch import Tensor

from mmstepnet.attentions import Attention, Plain, build_attention
from mmstepnet.attentions.base import choose_step

from ..blocks import describe
from .causality import causal_blocks
from .examples import made_up
from .finding import Selection, select, unwrap
from .finding.selection import around, is_named, is_within
from .finding.stages import LISTS
from .freezing import follow_training
from .own_forward import Plan, check_names, put_planned_steps
from .places import find_in_parts, modules_by_name, never_called
from .removal import RemovedBlock
from .residual import ResidualStep
from .step_block import (
    StepBlock,
    check_forward,
    check_offloaded,
    check_unsharded,
    put_steps,
    steps_of,
)

LOGGER = logging.getLogger(__name__)


def insert_steps(model: nn.Module,
                 attention: str | type = 'StepNet',
                 *,
                 blocks: Selection | None = None,
                 example: Tensor | tuple | dict | None = None,
                 layout: str | None = None,
                 first_block: bool | None = None,
                 init_step: float | None = 1.0,
                 **attention_args) -> list[str]:
    r"""Put an attention into the residual blocks of a model, in place.

    Each block then takes the step
    :math:`x_{t+1} = x_t + f(x_t) \otimes \Delta t` with :math:`\Delta t` from
    the attention; a Transformer's block takes two. The keys of the state dict
    stay, those of the attentions come on top; the model computes what it did
    before, as long as ``init_step`` is 1. Build optimizers, wrappers (DDP,
    FSDP, ``torch.compile``) and copies for an EMA afterwards.

    Blocks that have a description (:func:`register_block`) take their steps as
    it says. The residual blocks of all other classes are found by running the
    model, see :func:`mmstepnet.find_steps`, and take their steps in their own
    ``forward``. Such a block must add to its state once for each step, in
    whatever way; a projected identity takes no step.

    Args:
        model (nn.Module): A model. Where it has a ``backbone``, only that is
            looked at, unless ``blocks`` says otherwise.
        attention (str | type): Name or class of an attention. Defaults to
            ``'StepNet'``.
        blocks (str | type | Sequence, optional): The blocks, or modules that
            contain them: classes, or names from the right and part by part as
            in :meth:`pathlib.PurePath.match`: ``'layer3'``, ``'layer1.2'``,
            ``'encoder.*'``. None is all. Defaults to None.
        example (Tensor | tuple | dict, optional): What the model is called
            with: a tensor, its arguments, or these by name. One sample is
            enough. None makes one up for models of timm, torchvision and
            transformers and backbones of MMEngine, also where they are parts
            of ``model``. Defaults to None.
        layout (str, optional): The axes of the states, where they cannot be
            told from the layers around them: ``'NCHW'``, ``'NHWC'``,
            ``'NLC'``, ``'LNC'``, ``'NCTHW'`` or any other order of letters
            with N for the samples and C for the channels. Defaults to None.
        first_block (bool, optional): Whether blocks that project their
            identity carry the attention, unless ``blocks`` names them one by
            one. None leaves it to the attention: False for StepNet (a reading
            of the paper), True for the others. Defaults to None.
        init_step (float, optional): Where the step starts. None is the
            paper's form, for training from scratch. Defaults to 1.0.
        **attention_args: Further arguments of the attention. ``map_size``,
            which FCA needs, may be one for each stage, as
            ``{'layer1': 56, 'layer2': 28}``.

    Returns:
        list[str]: Names of the blocks that got steps.

    Raises:
        TypeError: ``blocks`` are neither names nor classes, or ``attention``
            is a config.
        ValueError: No block was found, one of ``blocks`` does not exist, a
            block has an attention already, the attention looks at positions
            and the blocks have tokens, or tokens do not see later ones, as in
            a decoder. The model is left as it was.
        RuntimeError: A ``forward`` was set on one of the blocks, or the
            model is in DDP, FSDP or accelerate's offload.

    Example:
        >>> import torch
        >>> from torchvision.models import resnet18
        >>> from mmstepnet import insert_steps
        >>> model = resnet18().eval()
        >>> x = torch.rand(1, 3, 64, 64)
        >>> before = model(x)
        >>> insert_steps(model, 'StepNet', blocks=['layer3', 'layer4'])
        ['layer3.1', 'layer4.1']
        >>> torch.allclose(model(x), before, atol=1e-5)
        True
    """
    if isinstance(attention, dict):
        raise TypeError('attention must be a name or a class and its arguments'
                        " stand beside it, as in insert_steps(model, 'SE', "
                        f'reduction=8), got {attention!r}')
    if first_block not in (True, False, None):
        raise ValueError(f'first_block must be True, False or None, got '
                         f'{first_block!r}')
    if layout is not None and not {'N', 'C'} < set(layout):
        raise ValueError(f"layout must name the axes of a state, such as "
                         f"'NCHW', 'NHWC' or 'NLC', got {layout!r}")
    chosen = {} if blocks is None else select(modules_by_name(model), blocks)
    check_unsharded(model)
    check_offloaded(model)
    cfg = dict(attention_args, type=attention, init_step=init_step)
    selected, used, changed = _select(model, chosen)
    ready, without = [], []
    for name, block, by_name in selected:
        known: Any = block.known if steps_of(block) else describe(type(block))
        if not known.is_residual(block):
            if by_name:
                raise ValueError(
                    f'{type(model).__name__}: {name} adds no identity, so '
                    f'there is no step in it; leave it out of blocks=')
            without.append(name)
            continue
        if not steps_of(block):
            check_forward(block)
        attentions = [
            build(cfg, name, block, step.channels(block), step.has_map)
            for step in known.steps]
        with_first = (
            attentions[0].first_block if first_block is None else first_block)
        if by_name or with_first or not any(
                step.projects(block) for step in known.steps):
            ready.append(_Ready(name, block, attentions))
    ready = _called(model, ready, example,
                    {name for name, _, by_name in selected if by_name})
    if example is not None or changed or not selected or used < set(chosen):
        ready += _find(model, chosen, used, {r.name for r in ready},
                       bool(selected), example, layout, cfg)
    elif not chosen and _has_others(model, {name for name, *_ in selected}):
        try:
            ready += _find(model, {}, used, {r.name for r in ready}, True,
                           None, layout, cfg)
        except ValueError as error:
            LOGGER.warning('Only blocks with a description get steps: %s',
                           error)
    if not ready:
        some = ', '.join(without[:5]) + ', …' * (len(without) > 5)
        found = f'; {some} add none' if without else ''
        raise ValueError(
            f'{type(model).__name__}: each block that was found projects its '
            f'identity, so none got a step; first_block=True includes them'
            f'{found}')
    order = {module: k for k, module in enumerate(model.modules())}
    ready.sort(key=lambda r: order[r.block])
    for r in ready:
        put_planned_steps(r.block, r.plans, r.attentions)
    return [r.name for r in ready]


@dataclass
class _Ready:
    """A block that is about to get steps."""

    name: str
    block: nn.Module
    attentions: Sequence[nn.Module]
    plans: tuple[Plan, Plan] | None = None


def _called(model: nn.Module, ready: list[_Ready], example: object,
            named: set[str]) -> list[_Ready]:
    """Described blocks without those whose ``forward`` is never called.

    Asked of blocks that stand alone in somebody's module, and of all where
    there is an example: steps in them would never be taken.
    """
    modules = modules_by_name(model)
    asked = [r.block for r in ready if example is not None or not isinstance(
        modules.get(r.name.rpartition('.')[0]), LISTS)]
    tried = next(made_up(unwrap(model), outermost=True), None) if (
        example is None) else example
    dead = never_called(model, tried, asked) if asked and (
        tried is not None) else set()
    names = [r.name for r in ready if r.block in dead]
    if names:
        what = (f'{", ".join(names)}: no pass calls the forward of such a '
                f'block, whose parts somebody uses without it; a step in it '
                f'would never be taken')
        if named & set(names) or example is None and len(names) == len(ready):
            raise ValueError(f'{what}. Leave it out by blocks=')
        LOGGER.warning('Blocks without steps: %s', what)
    return [r for r in ready if r.block not in dead]


def _find(model: nn.Module, chosen: dict[str | type, set[str]],
          used: set[str | type], described: set[str], any_described: bool,
          example: object, layout: str | None, cfg: dict) -> list[_Ready]:
    """Blocks without a description, found by running model or parts."""
    parts = find_in_parts(
        model, example, layout, '' if chosen else _scope(model))
    if not parts:
        missing = [i for i in chosen if i not in used]
        what = (f'blocks names {missing}, which has no description' if missing
                else 'no block has a description')
        raise ValueError(
            _shortened('\n  '.join([
                f'{type(model).__name__}: {what}.', *_repeated(model)]), 700)
            + '\nBlocks of any other class are found by running the model: '
            'give example=, what it is called with, such as torch.zeros(1, '
            '3, 224, 224)')
    found, refused, seen = [], [], []
    for prefix, part, given, (plans, without, shown) in parts:
        refused += [reason for reason in without
                    if chosen or reason.startswith(_scope(model))]
        seen.append(shown)
        taken = {}
        for name, plan in plans.items():
            full = prefix + name
            matched = [i for i, n in chosen.items() if is_within(full, n)]
            if not _nests(full, described) and (
                    matched if chosen else full.startswith(_scope(model))):
                used.update(matched)
                taken[name] = plan
        modules = modules_by_name(part)
        for name in causal_blocks(part, given, taken):
            raise ValueError(
                f'{prefix}{name} ({type(modules[name]).__name__}) '
                f"is a decoder's block: its tokens see no later ones, and a "
                f'gate, which pools over all of them, would show them the '
                f'future. Decoders can be measured (TrajectoryRecorder), but '
                f'take no steps')
        found += [(prefix + name, modules[name], plan)
                  for name, plan in taken.items()]
    missing = [i for i in chosen if i not in used]
    if missing or not (found or any_described):
        what = (f'blocks names {missing}, but none of these' if missing
                else 'no block')
        raise ValueError(_shortened('\n  '.join([
            f'{type(model).__name__}: {what} can take steps.',
            *_repeated(model), *refused[:3], *seen]), 780)
            + '\nDescribe the class of a residual block '
            '(mmstepnet.register_block), or name other blocks by '
            'blocks=')
    if refused and not chosen:
        LOGGER.warning('Blocks without steps: %s', '; '.join(refused))
    ready = []
    for name, block, plan in found:
        check_forward(block)
        check_names(name, block, plan[0])
        ready.append(_Ready(name, block, [
            build(cfg, name, block, place.width, place.has_map)
            for place in plan[0].places], plan))
    return ready


def _has_others(model: nn.Module, described: set[str]) -> bool:
    """Whether modules of one class stand in a list away from known blocks."""
    for name, module in modules_by_name(model).items():
        if isinstance(module, LISTS) and name.startswith(
                _scope(model)) and not _nests(name, described):
            kinds = [type(m) for m in map(unwrap, module.children())
                     if m._modules
                     and not type(m).__module__.startswith('torch.nn.')]
            if len(kinds) > len(set(kinds)):
                return True
    return False


def _repeated(model: nn.Module) -> list[str]:
    """Classes whose modules stand side by side in a model, for messages."""
    names: dict[type, list[str]] = {}
    for name, module in modules_by_name(model).items():
        if module._modules and not type(module).__module__.startswith(
                'torch.nn.'):
            names.setdefault(type(module), []).append(name)
    return [f'{cls.__name__}: {len(found)}, such as {found[0]}'
            for cls, found in names.items() if len(found) > 1][:4]


def _shortened(text: str, length: int) -> str:
    return text if len(text) <= length else f'{text[:length - 2]} …'


def _nests(name: str, others: set[str]) -> bool:
    """Whether a module is in one of others, or the other way round."""
    return any(f'.{name}.'.startswith(f'.{other}.')
               or f'.{other}.'.startswith(f'.{name}.' if name else '.')
               for other in others)


def remove_steps(model: nn.Module) -> list[str]:
    """Take out what :func:`insert_steps` has put in.

    A pre-activation block of ours keeps its steps, with Δt = 1. BNs that
    :func:`mark_only_steps_as_trainable` keeps in eval mode follow ``train()``
    again. A warning says what is thrown away, where Δt is not 1 throughout.

    Args:
        model (nn.Module): The model, changed in place.

    Returns:
        list[str]: Names of the blocks that had steps.

    Raises:
        RuntimeError: A ``forward`` was set on one of the blocks since. The
            model is left as it was.
    """
    check_unsharded(model)
    blocks = {}
    for name, block in modules_by_name(model).items():
        if isinstance(block, StepBlock):
            check_forward(block)
            blocks[name] = block
        elif hasattr(block, 'known') and any(
                step.attention is not None for step in steps_of(block)):
            blocks[name] = block
    _warn_of_loss(step.attention for block in blocks.values()
                  for step in steps_of(block))
    for block in blocks.values():
        if isinstance(block, StepBlock):
            block.take_steps()
        else:
            put_steps(block, [None] * len(block.known.steps))
    follow_training(model.modules())
    return list(blocks)


def _warn_of_loss(attentions: Iterable[nn.Module | None]) -> None:
    """Say how far from 1 the steps are that are about to go."""
    losses = [_distance_from_1(a) for a in attentions
              if a is not None and not isinstance(a, Plain)]
    lost = [x for x in losses if x is None or x > 1e-6]
    if not lost:
        return
    known = [x for x in lost if x is not None]
    what = [f'up to {max(known):.2g} in {len(known)} whose Δt is constant'
            ] if known else []
    if len(known) < len(lost):
        what.append(f'unknown in {len(lost) - len(known)} whose Δt depends on '
                    f'the input')
    warnings.warn(
        f'remove_steps throws away what {len(lost)} of {len(losses)} gates '
        f'do: |Δt - 1| is {" and ".join(what)}; save_steps keeps them',
        stacklevel=3)


def _distance_from_1(attention: nn.Module) -> float | None:
    """Largest |Δt - 1| of a gate whose Δt is constant; None for others."""
    if any(p.is_meta for p in attention.parameters()):
        return 0.0  # it holds nothing that could be lost
    try:
        gate: Any = copy.deepcopy(attention).cpu().float().eval()
        draw = partial(torch.randn, device='cpu',
                       generator=torch.Generator().manual_seed(0))
        shape = 2, 16, gate.channels  # 16 samples, of other means each
        x, f = draw(*shape, 8, 8) + 3 * draw(*shape, 1, 1)
        with torch.no_grad():
            step = choose_step(gate, x, f)
    except Exception:  # of a gate that somebody wrapped or made
        return None
    return float((step - 1).abs().max()) if torch.equal(
        step, step[:1].expand_as(step)) else None


def step_parameters(model: nn.Module, **options) -> list[dict]:
    """Split the parameters of a model into an optimizer's two groups.

    Args:
        model (nn.Module): A model with steps.
        **options: What the attentions' group has of its own, such as ``lr``
            and ``weight_decay``.

    Returns:
        list[dict]: The group of the other parameters, and that of the
        attentions with ``options``.

    Raises:
        ValueError: The model has no attention.

    Example:
        >>> from torch.optim import SGD
        >>> from torchvision.models import resnet18
        >>> from mmstepnet import insert_steps, step_parameters
        >>> model = resnet18()
        >>> names = insert_steps(model)
        >>> optimizer = SGD(step_parameters(model, weight_decay=0.0), lr=0.1,
        ...                 weight_decay=1e-4)
        >>> [len(group['params']) for group in optimizer.param_groups]
        [62, 25]
    """
    gates = list(
        dict.fromkeys(
            parameter for step in model.modules()
            if isinstance(step, ResidualStep) and step.attention is not None
            for parameter in step.attention.parameters()))
    if not gates:
        raise ValueError(
            f'{type(model).__name__} has no step whose attention has '
            f'parameters of its own; call insert_steps first, and FSDP with '
            f'use_orig_params=True')
    known = set(gates)
    rest = [p for p in model.parameters() if p not in known]
    return [dict(params=rest), dict(params=gates, **options)]


def _scope(model: nn.Module) -> str:
    """Where blocks are looked for, unless they are named."""
    has = isinstance(getattr(unwrap(model), 'backbone', None), nn.Module)
    return 'backbone.' if has else ''


def _select(model: nn.Module, chosen: dict[str | type, set[str]]
            ) -> tuple[list[tuple[str, Any, bool]], set[str | type], bool]:
    """Described blocks, each with its name and whether that is given itself.

    Also the items that mean one, and whether there are blocks with another
    ``forward`` than the one that is described.
    """
    found, stepped, changed = [], [], False
    used: set[str | type] = set()
    for name, module in modules_by_name(model).items():
        matched = [i for i, n in chosen.items() if is_within(name, n)]
        if not (matched if chosen else name.startswith(_scope(model))):
            continue
        steps = steps_of(module)
        if steps and (not hasattr(module, 'known') or any(
                step.attention is not None for step in steps)):
            stepped.append(name)
            continue
        if isinstance(module, RemovedBlock):
            continue
        try:
            known = bool(steps) or describe(type(module)) is not None
        except RuntimeError as error:
            LOGGER.info('%s is found by running instead: %s', name, error)
            known, changed = False, True
        if known:
            by_name = any(name in chosen[i] and isinstance(i, str)
                          and not set(i) & set('*?[') for i in matched)
            found.append((name, module, by_name))
            used.update(matched)
    if stepped:
        raise ValueError(f'there are steps already in {", ".join(stepped)}; '
                         f'call remove_steps(model) first, or, in a backbone '
                         f'of mmstepnet, choose its attention=')
    return found, used, changed


def build(cfg: dict, name: str, block: nn.Module, channels: int,
          has_map: bool) -> Attention:
    """An attention for a block, on its device and in its dtype.

    Args:
        cfg (dict): ``type`` and the arguments beside ``channels``.
        name (str): Name of the block.
        block (nn.Module): The block.
        channels (int): Channels of its state.
        has_map (bool): Whether its state is a map.

    Raises:
        ValueError: It looks at positions and the state has none, or
            ``map_size`` does not name the block's stage.
    """
    cfg = dict(cfg)
    if isinstance(cfg.get('map_size'), Mapping):
        sizes = [size for stage, size in cfg['map_size'].items()
                 if any(is_named(n, stage) for n in around(name))]
        if len(sizes) != 1:
            raise ValueError(f'map_size must name the stage of {name} once, '
                             f'got {cfg["map_size"]!r}')
        cfg['map_size'] = sizes[0]
    reference = next(p for p in block.parameters() if p.is_floating_point())
    with torch.device(reference.device):  # whatever the default device is
        attention = build_attention(cfg, channels)
    if attention.needs_positions and not has_map:
        raise ValueError(
            f'{type(attention).__name__} looks at positions and cannot stand '
            f'in {name} ({type(block).__name__}), whose state is a set of '
            f'tokens; take an attention over channels, such as StepNet, SE or '
            f'ECA')
    return attention.to(reference.device, reference.dtype).train(
        block.training)
