"""Residual steps in a model that exists, of whatever library."""

import logging
import sys
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
import torch.nn as nn
from torch import Tensor

from mmstepnet.attentions import ATTENTIONS, Attention, build_attention
from mmstepnet.attentions.base import check_arguments
from mmstepnet.messages import inform, shorten
from mmstepnet.torch_version import has_values
from mmstepnet.tracing import Selection, match, unwrap
from mmstepnet.tracing.selection import enclosing_names, is_named, is_within
from mmstepnet.tracing.wrappers import name_modules

from .branch import BranchStep, Place, SteppedBlock, attach, detach
from .examples import NOT_RUN
from .freezing import follow_training
from .fused_blocks import FusedBlock, is_fusable, put_fused_step, state_width
from .modules import check_unsharded, modules_by_name, steps_of
from .residual import ResidualStep
from .spots import find_places

LOGGER = logging.getLogger(__name__)


def insert_steps(
    model: nn.Module,
    attention: str | type = 'StepNet',
    *,
    blocks: Selection | None = None,
    example: Tensor | tuple | dict | None = None,
    layout: str | None = None,
    first_block: bool | None = None,
    init_step: float | None = 1.0,
    **attention_args,
) -> list[str]:
    r"""Put an attention into the residual blocks of a model, in place.

    Each block then takes the step
    :math:`x_{t+1} = x_t + f(x_t) \otimes \Delta t` with :math:`\Delta t` from
    the attention; a Transformer's block takes two. The keys of the state dict
    stay, those of the attentions come on top; the model computes what it did
    before, as long as ``init_step`` is 1. Build optimizers, wrappers (DDP,
    FSDP, ``torch.compile``) and copies for an EMA afterwards.

    A step stands where the branch ends: there f becomes f ⊗ Δt, and the block
    adds by itself. Where its state is given and its branch returned is found
    by running the model, see :func:`mmstepnet.find_steps`. In BasicBlock and
    Bottleneck of torchvision, timm and OpenMMLab the step takes in the norm,
    the sum and the ReLU, and a projected identity may take a step, too.

    A gate pools over all places of a map or over all tokens of an image, so
    it must not stand in a network that may not see ahead. Blocks of texts
    and blocks that are given a mask of padding are left out by name.

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
            of ``model``; where there are blocks of ResNets and ``blocks``
            asks for no others, it runs nothing. The pass is one on the meta
            device, which takes no memory; a model that cannot run there runs
            where it is. Defaults to None.
        layout (str, optional): The axes of the states, where they cannot be
            told from the layers around them: ``'NCHW'``, ``'NHWC'``,
            ``'NLC'``, ``'LNC'``, ``'NCTHW'`` or any other order of letters
            with N for the samples and C for the channels. Defaults to None.
        first_block (bool, optional): Whether blocks that project their
            identity carry the attention, unless ``blocks`` names them one by
            one. None leaves it to the attention: False for StepNet and our
            adaptors (a reading of the paper), True for the others. Defaults
            to None.
        init_step (float, optional): Where the step starts. None is the
            paper's form, for training from scratch. Defaults to 1.0.
        **attention_args: Further arguments of the attention. ``map_size``,
            which FCA needs, may be one for each stage, as
            ``{'layer1': 56, 'layer2': 28}``.

    Returns:
        list[str]: Names of the blocks that got steps.

    Raises:
        KeyError: There is no such attention.
        TypeError: ``blocks`` are neither names nor classes, or the attention
            does not take one of ``attention_args``.
        ValueError: No block was found, one of ``blocks`` takes no step, a
            block has an attention already, or the attention looks at
            positions and the blocks have tokens. The model is left as it was.
        RuntimeError: The model is in DDP or FSDP.

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
    if layout is not None and not {'N', 'C'} < set(layout):
        raise ValueError(
            f'layout must name the axes of a state, such as '
            f"'NCHW', 'NHWC' or 'NLC', got {layout!r}"
        )
    check_unsharded(name_modules(model))
    check_arguments(
        ATTENTIONS.find(attention),
        attention_args,
        beside='; insert_steps takes blocks, example, layout, first_block',
    )
    candidates = Candidates(modules_by_name(model), blocks)
    cfg = dict(attention_args, type=attention, init_step=init_step)
    steps = _steps_of_resnets(candidates, cfg, first_block)
    refused: list[str] = []
    if example is not None or candidates.empty_choices(steps):
        places, refused = _find_places(candidates, example, layout)
        outside = [name for name in places if not is_within(name, {*steps})]
        for name in outside:
            block = candidates.modules[name]
            steps[name] = [
                (place, build(cfg, name, block, place))
                for place in places[name]
            ]
    candidates.check(steps, refused, example)
    changed = {}
    for name, block in candidates.modules.items():
        if steps.get(name):
            changed[name] = block
    _warn(changed, refused)
    for name, block in changed.items():
        put_in(block, steps[name])
    log_new(
        {name: [gate for _, gate in steps[name]] for name in changed},
        init_step,
    )
    return list(changed)


Steps = Collection[tuple[Place | None, Attention]]
"""Places of steps, None in a ResNet's block, and their attentions. None at
all: the block is left out, because it projects its identity."""


PROJECTED = 'projects its identity; first_block=True includes it'
"""Why a ResNet's block takes no step by itself."""


class Candidates:
    """The modules of a model among which blocks are looked for."""

    def __init__(
        self, modules: dict[str, nn.Module], blocks: Selection | None
    ):
        self.all = modules
        self.kind = type(modules['']).__name__
        self.chosen: dict[Any, set[str]] = (
            {'': {''}} if blocks is None else match(modules, blocks)
        )
        backbone = getattr(modules[''], 'backbone', None)
        is_backbone = blocks is None and isinstance(backbone, nn.Module)
        self.scope = 'backbone.' if is_backbone else ''
        self.modules: dict[str, nn.Module] = {}
        stepped = []
        names = set().union(*self.chosen.values())
        for name, module in modules.items():
            if is_within(name, names) and name.startswith(self.scope):
                self.modules[name] = module
                if has_steps(module):
                    stepped.append(name)
        self.named: set[str] = set()
        """Those that were named one by one."""
        for item, matching in self.chosen.items():
            if isinstance(item, str) and item and not set(item) & set('*?['):
                self.named |= matching
        if stepped:
            raise ValueError(
                f'there are steps already in {", ".join(stepped)}; call '
                f'remove_steps(model) first, or, in a backbone of mmstepnet, '
                f'choose its attention='
            )

    def empty_choices(self, blocks: Iterable[str]) -> dict[Any, set[str]]:
        """Choices in which there is none of some blocks."""
        return {
            item: names
            for item, names in self.chosen.items()
            if not any(is_within(name, names) for name in blocks)
        }

    def check(
        self, steps: dict[str, Steps], refused: list[str], example: object
    ) -> None:
        """Refuse a choice in which there is no block that takes steps."""
        taking = [name for name in steps if steps[name]]
        for item, names in self.empty_choices(taking).items():
            where = f'of blocks={item!r} ' if item else ''
            why = [
                f'{name} {PROJECTED}'
                for name in steps
                if is_within(name, names)
            ]
            # Of another choice's blocks nothing is said.
            why = why or [
                sentence
                for sentence in refused
                if is_within(sentence.split()[0], names)
                or sentence.split()[0] not in self.all
            ]
            if not why:
                blocks = explain_blocks(self.all[''], example)
                why = [f'its blocks are {shorten([*filter(None, blocks)])}']
            raise ValueError(
                f'{self.kind}: no block {where}can take steps: '
                + '; '.join(why[:4])
            )


def explain_blocks(
    model: nn.Module, example: object = None
) -> dict[str, list[str]]:
    """Say of each block of a model whether :func:`insert_steps` takes it.

    Args:
        model (nn.Module): The model, which is left as it was.
        example (optional): See :func:`insert_steps`. Defaults to None.

    Returns:
        dict: Where a block takes its steps, or why it takes none, by its
        name. What is said of no block stands under ``''``.
    """
    candidates = Candidates(modules_by_name(model), None)
    resnets = _steps_of_resnets(
        candidates, dict(type='StepNet', init_step=1.0), None
    )
    lines: dict[str, list[str]] = {}
    for name, steps in resnets.items():
        taken = 'takes a step together with its last norm'
        lines[name] = [taken if steps else PROJECTED]
    places, refused = _find_places(candidates, example, None)
    for name in places:
        if not is_within(name, {*resnets}):
            lines[name] = list(map(str, places[name]))
    for sentence in refused:
        name, _, why = sentence.partition(' ')
        if name in candidates.modules:
            lines.setdefault(name, []).append(why)
        else:
            lines.setdefault('', []).append(sentence)
    return lines


def _steps_of_resnets(
    candidates: Candidates, cfg: dict, first_block: bool | None
) -> dict[str, Steps]:
    """Steps of blocks whose tails are known; none where they stay plain."""
    steps: dict[str, Steps] = {}
    for name, block in candidates.modules.items():
        if is_fusable(block):
            gate = build(cfg, name, block)
            takes_step = (
                name in candidates.named
                or block.downsample is None
                or (gate.first_block if first_block is None else first_block)
            )
            steps[name] = [(None, gate)] if takes_step else []
    return steps


def log_new(
    attentions: Mapping[str, list[Attention]], init_step: float | None
) -> None:
    """Say what was put into a network, and where it starts.

    Args:
        attentions (Mapping[str, list[Attention]]): Those of each block, by
            its name.
        init_step (float, optional): See :class:`Attention`.
    """
    start = 'as in its paper'
    if init_step is not None:
        start = f'at a step of {init_step:g}'
    inform(f'{describe(attentions)}; starts {start}')


def describe(attentions: Mapping[str, Iterable[nn.Module]]) -> str:
    """Attentions, blocks and number of parameters, in a part of a sentence.

    Args:
        attentions (Mapping[str, Iterable[nn.Module]]): Those of each block,
            by its name.
    """
    kinds: dict[str, None] = {}
    parameters = 0
    for of_block in attentions.values():
        for attention in of_block:
            kinds[getattr(attention, 'recorded_type', 'an attention')] = None
            parameters += sum(p.numel() for p in attention.parameters())
    blocks = 'block' if len(attentions) == 1 else 'blocks'
    return (
        f'{" and ".join(kinds)} in {len(attentions)} {blocks}: '
        f'{shorten([*attentions])}; {parameters:,} parameters'
    )


def put_in(block: Any, steps: Steps) -> None:
    """Put steps into a block: where branches end, or in a ResNet's tail."""
    if 'torch._dynamo' in sys.modules:  # its guards do not see hooks
        torch.compiler.reset()
    for place, attention in steps:
        if place is not None:
            attach(block, BranchStep(attention, place).train(block.training))
            continue
        put_fused_step(block)
        step: Any = unwrap(block.step)
        step.attention = attention


def _find_places(
    candidates: Candidates, example: object, layout: str | None
) -> tuple[dict[str, tuple[Place, ...]], list[str]]:
    """Places in a model, or in the outermost parts that run by themselves."""
    places: dict[str, tuple[Place, ...]] = {}
    refused: list[str] = []
    ran: list[str] = []
    for name, part in candidates.all.items():
        prefix = name and f'{name}.'
        if prefix.startswith(tuple(ran)) or (
            example is None and not prefix.startswith(candidates.scope)
        ):
            continue
        try:
            found = find_places(
                part, example, layout, outermost=name in ('', 'backbone')
            )
        except ValueError as error:
            if example is not None:
                raise
            LOGGER.debug('%s', error)  # its own parts may run
            continue
        ran.append(prefix)
        for block, spots in found.places.items():
            if prefix + block in candidates.modules:
                places[prefix + block] = spots
        for sentence in found.refused:
            if (prefix + sentence).split()[0] in candidates.modules:
                refused.append(prefix + sentence)
        if not (found.places or found.refused):
            refused.append(found.seen)
    if not ran:
        refused = [NOT_RUN]
    return places, refused


def _warn(blocks: dict[str, nn.Module], refused: list[str]) -> None:
    """Name what is left out, and what keeps gates from learning."""
    if refused:
        LOGGER.warning('Without steps: %s', '; '.join(refused))
    silent = [name for name, block in blocks.items() if _is_silent(block)]
    if silent:
        LOGGER.warning(
            'A norm of %s starts at zero, so f is 0 there: no gate has a '
            'gradient until the norm moves',
            ', '.join(silent),
        )
    if any(p.is_meta for block in blocks.values() for p in block.parameters()):
        LOGGER.warning(
            'The gates are on the meta device. to_empty() gives them their '
            'start; who fills their memory in another way, as from_pretrained '
            'of transformers does, calls reset_parameters() of each'
        )


def _is_silent(block: nn.Module) -> bool:
    """Whether a norm starts at zero.

    As ``zero_init_last`` of timm and ``zero_init_residual`` of others have it.
    """
    for key, p in block.named_parameters():
        is_norm = p.ndim == 1 and key.endswith('weight')
        if is_norm and has_values(p) and not p.any():
            return True
    return False


def remove_steps(model: nn.Module) -> list[str]:
    """Take out what :func:`insert_steps` has put in.

    A pre-activation block of ours keeps its steps, with Δt = 1. Modules that
    :func:`mark_only_steps_as_trainable` keeps in eval mode follow ``train()``
    again.

    Args:
        model (nn.Module): The model, changed in place.

    Returns:
        list[str]: Names of the blocks that had steps.
    """
    check_unsharded(name_modules(model))
    names = []
    for name, block in modules_by_name(model).items():
        if has_steps(block):
            names.append(name)
        if steps_of(block) or isinstance(block, SteppedBlock):
            take_out_steps(block)
    follow_training(model.modules())
    in_model = modules_by_name(model)  # a wrapper of a step has gone, too
    return [name for name in names if name in in_model]


def has_steps(block: nn.Module) -> bool:
    """Whether a block takes steps that an attention chooses."""
    return isinstance(block, SteppedBlock) or any(
        step.attention is not None for step in steps_of(block)
    )


def take_out_steps(block: nn.Module) -> None:
    """Take the steps out of a block; what a class asks for has Δt = 1."""
    if isinstance(block, SteppedBlock):
        detach(block)
    elif isinstance(block, FusedBlock):
        block.take_step()
    else:
        for step in steps_of(block):
            step.attention = None


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
    gates = dict.fromkeys(
        p
        for step in model.modules()
        if isinstance(step, ResidualStep) and step.attention is not None
        for p in step.attention.parameters()
    )
    if not gates:
        raise ValueError(
            f'{type(model).__name__} has no step whose attention has '
            f'parameters of its own; call insert_steps first, and FSDP with '
            f'use_orig_params=True'
        )
    rest = [p for p in model.parameters() if p not in gates]
    return [dict(params=rest), dict(params=list(gates), **options)]


def build(
    cfg: dict, name: str, block: nn.Module, place: Place | None = None
) -> Attention:
    """An attention for a block, on its device and in its dtype.

    Args:
        cfg (dict): ``type`` and the arguments beside ``channels``.
        name (str): Name of the block.
        block (nn.Module): The block.
        place (Place, optional): Where the step stands. None is the tail of
            a ResNet's block. Defaults to None.

    Raises:
        ValueError: It looks at positions and the state has none, or
            ``map_size`` does not name the block's stage.
    """
    cfg = dict(cfg)
    if isinstance(cfg.get('map_size'), Mapping):
        sizes = [
            size
            for stage, size in cfg['map_size'].items()
            if any(is_named(n, stage) for n in enclosing_names(name))
        ]
        if len(sizes) != 1:
            raise ValueError(
                f'map_size must name the stage of {name} once, '
                f'got {cfg["map_size"]!r}'
            )
        cfg['map_size'] = sizes[0]
    reference = next(p for p in block.parameters() if p.is_floating_point())
    with torch.device(reference.device):  # whatever the default device is
        attention = build_attention(
            cfg, place.width if place else state_width(block)
        )
    if attention.needs_positions and place and place.dims < 4:
        raise ValueError(
            f'{type(attention).__name__} looks at positions and cannot stand '
            f'in {name} ({type(block).__name__}), whose state is a set of '
            f'tokens; take an attention over channels, such as StepNet, SE or '
            f'ECA'
        )
    return attention.to(reference.device, reference.dtype).train(
        block.training
    )
