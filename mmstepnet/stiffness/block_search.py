"""Finding the residual blocks of a model, and which are stage-first."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

import torch.nn as nn

from mmstepnet.steps.known_blocks import KNOWN_BLOCKS, KnownBlock, describe
from mmstepnet.steps.residual import ResidualStep
from mmstepnet.steps.step_block import StepBlock

from .known_block import KnownBlockProbe, MeasuredBlock
from .probes import Probe, Report, ResidualStepProbe
from .unknown_block import UnknownBlockProbe

Selection = str | type | Sequence[str | type]
"""Blocks by name pattern, by class, or a mixture of both."""


@dataclass
class FoundBlock:
    """A residual block.

    Attributes:
        name (str): Its name in the model.
        module (nn.Module): The block.
        stage (str): Name of its stage, the container it stands in.
        first (bool): Whether it is the stage's first.
    """

    name: str
    module: nn.Module
    stage: str
    first: bool


def find_blocks(model: nn.Module,
                selection: Selection | None = None) -> list[FoundBlock]:
    """Find residual blocks.

    Args:
        model (nn.Module): Where to look. If it has a ``backbone``, only
            there, unless ``selection`` says otherwise: the blocks of a
            detector's heads work on regions, not on images.
        selection (str | type | Sequence, optional): Classes of blocks, or
            patterns of their names, from the right and part by part as in
            :meth:`pathlib.PurePath.match`: ``'layer3.*'`` means every child
            of any ``layer3``. None is all that are known. Defaults to None.

    Returns:
        list[FoundBlock]: Blocks in the order of the model's modules.

    Raises:
        ValueError: Nothing was found; the message lists what was looked for.
        TypeError: ``selection`` is neither names nor classes.
        RuntimeError: ``selection`` is None and the ``forward`` of a block is
            another than the one that is known.
    """
    modules = dict(model.named_modules())
    if selection is None:
        scope = 'backbone.' if isinstance(
            getattr(model, 'backbone', None), nn.Module) else ''
        names = [
            name for name, module in modules.items()
            if name.startswith(scope) and (
                _has_residual_step(module) or _known(module))
        ]
        if not names:
            raise ValueError(
                f'{type(model).__name__} has no residual block that is known'
                f'{" in its backbone" if scope else ""}. Looked for blocks '
                f'that hold a ResidualStep and for '
                f'{", ".join(sorted(KNOWN_BLOCKS))} (with their own forward). '
                f"Name the blocks by a pattern, such as blocks='layer*.*', "
                f'or by their class')
    else:
        names = _select(modules, selection)
    kinds: dict[str, set[type]] = {}
    for name in names:
        stage = name.rpartition('.')[0]
        kinds.setdefault(stage, set()).add(_host(modules[name]))
    first = {
        stage: next((child for child in modules[stage].children()
                     if _host(child) in found), None)
        for stage, found in kinds.items()
    }
    blocks = []
    for name in names:
        stage, block = name.rpartition('.')[0], modules[name]
        blocks.append(FoundBlock(name, block, stage, first[stage] is block))
    return blocks


def unwrap(model: nn.Module) -> nn.Module:
    """Model inside wrappers: parallel, averaged or compiled."""
    while True:
        inner = getattr(model, '_orig_mod', None)
        children = list(model.children())
        if inner is None and len(children) == 1:
            inner = getattr(model, 'module', None)
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def build_probe(block: FoundBlock, report: Report) -> Probe:
    """Choose how to measure a block."""
    if _has_residual_step(block.module):
        return ResidualStepProbe(block.name, block.module, report)
    try:
        known = _known(block.module)
    except RuntimeError:  # it was chosen as one that is not known
        known = None
    if known is not None:
        return KnownBlockProbe(block.name, block.module, report, known)
    return UnknownBlockProbe(block.name, block.module, report)


def _host(module: nn.Module) -> type:
    """Class of a block, whether steps are in it or not."""
    return module.host if isinstance(module, StepBlock) else type(module)


def _has_residual_step(module: nn.Module) -> bool:
    """Whether a block has steps of its own, none that a recorder put in."""
    return not isinstance(module, MeasuredBlock) and any(
        isinstance(m, ResidualStep) for m in module.children())


def _known(module: nn.Module) -> KnownBlock | None:
    """What is known of a residual block.

    Raises:
        RuntimeError: See :func:`describe`.
    """
    known = describe(_host(module))
    return known if known is not None and known.is_residual(module) else None


def _select(modules: dict[str, nn.Module], selection: Selection) -> list[str]:
    if isinstance(selection, (str, type)):
        selection = [selection]
    if not isinstance(selection, Sequence) or not selection:
        raise TypeError("blocks must be name patterns, such as 'layer3.*', or "
                        f'classes of blocks; got {selection!r}')
    names = set()
    for item in selection:
        if isinstance(item, type):
            found = [n for n, m in modules.items() if isinstance(m, item)]
        elif isinstance(item, str):
            path = item.replace('.', '/')
            found = [
                n for n in modules if n and path
                and PurePosixPath(n.replace('.', '/')).match(path)
            ]
        else:
            raise TypeError("blocks must hold name patterns, such as "
                            f"'layer3.*', or classes; got {item!r}")
        if not found:
            raise ValueError(
                f'blocks={item!r} matches no module. Names look like '
                f'{_examples(modules)}; a * stands for one part between '
                f'dots')
        names.update(found)
    nested = [(outer, inner) for outer in names for inner in names
              if inner.startswith(f'{outer}.')]
    if nested:
        raise ValueError('blocks selects {!r} and, inside it, {!r}; a block '
                         'within a block would be counted twice'.format(
                             *min(nested)))
    return [name for name in modules if name in names]


def _examples(modules: dict[str, nn.Module]) -> str:
    names = [n for n, m in modules.items() if n and not any(m.children())]
    return ', '.join(names[::max(len(names) // 4, 1)][:5]) or 'nothing'
