"""Residual steps in a model that exists, of whatever library."""

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

import torch
import torch.nn as nn

from mmstepnet.attentions import Attention, build_attention

from .known_blocks import KNOWN_BLOCKS, StepDescription, describe
from .residual import ResidualStep
from .step_block import StepBlock, check_forward, put_steps, take_steps


def insert_steps(model: nn.Module,
                 attention: str | type = 'StepNet',
                 *,
                 blocks: str | Sequence[str] | None = None,
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

    Args:
        model (nn.Module): A model with blocks that are known, see
            :func:`register_block`. Where it has a ``backbone``, only that is
            looked at, unless ``blocks`` says otherwise.
        attention (str | type): Name or class of an attention. Defaults to
            ``'StepNet'``.
        blocks (str | Sequence[str], optional): Names of the blocks, or of
            modules that contain them, from the right and part by part as in
            :meth:`pathlib.PurePath.match`: ``'layer3'``, ``'layer1.2'``,
            ``'encoder.*'``. None is all. Defaults to None.
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
        ValueError: No block was found, one of ``blocks`` does not exist, a
            block has an attention already, or the attention looks at
            positions and the blocks have tokens. The model is left as it was.
        RuntimeError: A block's ``forward`` is another than the one that its
            description was written for.

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
    if first_block not in (True, False, None):
        raise ValueError(f'first_block must be True, False or None, got '
                         f'{first_block!r}')
    cfg = dict(attention_args, type=attention, init_step=init_step)
    prepared, without = [], []
    for name, block, by_name in _select(model, blocks):
        known = block.known if _steps(block) else describe(type(block))
        if not known.is_residual(block):
            if by_name:
                raise ValueError(
                    f'{type(model).__name__}: {name} adds no identity, so '
                    f'there is no step in it; leave it out of blocks=')
            without.append(name)
            continue
        if not _steps(block):
            check_forward(block)
        attentions = [_build(cfg, name, block, step) for step in known.steps]
        with_first = (
            attentions[0].first_block if first_block is None else first_block)
        if by_name or with_first or not any(
                step.projects(block) for step in known.steps):
            prepared.append((name, block, attentions))
    if not prepared:
        found = (f'; {", ".join(without)} add none' if without else '')
        raise ValueError(
            f'{type(model).__name__}: each block that was found projects its '
            f'identity, so none got a step; first_block=True includes them'
            f'{found}')
    for _, block, attentions in prepared:
        put_steps(block, attentions)
    return [name for name, _, _ in prepared]


def remove_steps(model: nn.Module) -> list[str]:
    """Take out what :func:`insert_steps` has put in.

    A pre-activation block of ours keeps its steps, with Δt = 1.

    Args:
        model (nn.Module): The model, changed in place.

    Returns:
        list[str]: Names of the blocks that had steps.

    Raises:
        RuntimeError: A ``forward`` was set on one of the blocks since. The
            model is left as it was.
    """
    blocks = {}
    for name, block in model.named_modules():
        if isinstance(block, StepBlock) and block.lasting:
            check_forward(block)
            blocks[name] = block
        elif hasattr(block, 'known') and any(
                step.attention is not None for step in _steps(block)):
            blocks[name] = block
    for block in blocks.values():
        if isinstance(block, StepBlock):
            take_steps(block)
        else:
            put_steps(block, [None] * len(block.known.steps))
    return list(blocks)


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
        raise ValueError(f'{type(model).__name__} has no step whose attention '
                         f'has parameters; call insert_steps first')
    known = set(gates)
    rest = [p for p in model.parameters() if p not in known]
    return [dict(params=rest), dict(params=gates, **options)]


def _select(model: nn.Module, blocks: str | Sequence[str] | None
            ) -> list[tuple[str, nn.Module, bool]]:
    """Names, blocks, and whether ``blocks`` names them one by one."""
    patterns = [blocks] if isinstance(blocks, str) else blocks
    if patterns is not None and (
            not isinstance(patterns, Sequence) or not patterns
            or not all(isinstance(p, str) and p for p in patterns)):
        raise ValueError(
            f"blocks must be names such as 'layer1.2' or 'layer3', or None "
            f'for all, got {blocks!r}')
    scope = ''
    if patterns is None and isinstance(
            getattr(model, 'backbone', None), nn.Module):
        scope = 'backbone.'
    found, used, stepped = [], set(), []
    for name, module in model.named_modules():
        matched = [p for p in patterns or () if _matches(name, p)]
        if not name.startswith(scope) or not (matched or patterns is None):
            continue
        if isinstance(module, StepBlock) and not module.lasting:
            raise ValueError(f'{name} is being recorded; stop the recorder '
                             f'before you call insert_steps')
        steps = _steps(module)
        if steps and (not hasattr(module, 'known') or any(
                step.attention is not None for step in steps)):
            stepped.append(name)
        elif steps or describe(type(module)) is not None:
            by_name = any(_path(name).match(p.replace('.', '/'))
                          and not set(p) & set('*?[') for p in matched)
            found.append((name, module, by_name))
            used.update(matched)
    if stepped:
        raise ValueError(f'there are steps already in {", ".join(stepped)}; '
                         f'call remove_steps(model) first, or, in a backbone '
                         f'of mmstepnet, choose its attention=')
    missing = [p for p in patterns or () if p not in used]
    if missing or not found:
        what = f'blocks names {missing}' if missing else 'no block is known'
        raise ValueError(
            f'{type(model).__name__}: {what}, but known blocks are '
            f'{[name for name, _, _ in found]}. Known are '
            f'{", ".join(sorted(KNOWN_BLOCKS))}; describe others by '
            f'mmstepnet.steps.register_block')
    return found


def _steps(block: nn.Module) -> list[ResidualStep]:
    return [m for m in block.children() if isinstance(m, ResidualStep)]


def _path(name: str) -> PurePosixPath:
    return PurePosixPath(name.replace('.', '/'))


def _matches(name: str, pattern: str) -> bool:
    """Whether a pattern means a module or one that contains it."""
    path = _path(name)
    pattern = pattern.replace('.', '/')
    return any(p.match(pattern) for p in (path, *path.parents) if p.name)


def _build(cfg: dict, name: str, block: nn.Module,
           description: StepDescription) -> Attention:
    cfg = dict(cfg)
    if isinstance(cfg.get('map_size'), Mapping):
        sizes = [size for stage, size in cfg['map_size'].items()
                 if _matches(name, stage)]
        if len(sizes) != 1:
            raise ValueError(f'map_size must name the stage of {name} once, '
                             f'got {cfg["map_size"]!r}')
        cfg['map_size'] = sizes[0]
    reference = next(p for p in block.parameters() if p.is_floating_point())
    with torch.device(reference.device):  # whatever the default device is
        attention = build_attention(cfg, description.channels(block))
    if attention.needs_positions and not description.has_map:
        raise ValueError(
            f'{type(attention).__name__} looks at positions and cannot stand '
            f'in {name}, a {type(block).__name__}, whose state is a set of '
            f'tokens; take an attention over channels, such as StepNet, SE or '
            f'ECA')
    return attention.to(reference.device, reference.dtype).train(
        block.training)
