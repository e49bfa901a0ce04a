"""Blocks that a user chooses, by names and classes."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import PurePosixPath

import torch.nn as nn

from mmstepnet.messages import shorten

Selection = str | type | Sequence[str | type]
"""Blocks by name pattern, by class, or a mixture of both. An item means the
modules that it matches, and all that is in them: ``'layer3'`` is its blocks.
"""


def match(
    modules: dict[str, nn.Module], selection: Selection
) -> dict[str | type, set[str]]:
    """Modules that each item of a selection matches, if any.

    Args:
        modules (dict): Modules by name.
        selection (str | type | Sequence): Classes, or patterns of names, from
            the right and part by part as in :meth:`pathlib.PurePath.match`:
            ``'layer3.*'`` matches every child of any ``layer3``.

    Returns:
        dict: Names of the modules by item. What is in them is meant, too, see
        :func:`is_within`.

    Raises:
        TypeError: It is neither names nor classes.
    """
    items = [selection] if isinstance(selection, (str, type)) else selection
    if (
        not isinstance(items, Sequence)
        or not items
        or not all(
            isinstance(item, type) or item and isinstance(item, str)
            for item in items
        )
    ):
        raise TypeError(
            "blocks must be names or patterns of names, such as 'layer1.2', "
            "'layer3' or 'layer3.*', or classes of modules, or None for all; "
            f'got {selection!r}'
        )
    chosen = {}
    for item in items:
        chosen[item] = {
            name
            for name, module in modules.items()
            if (
                isinstance(module, item)
                if isinstance(item, type)
                else is_named(name, item)
            )
        }
    return chosen


def select(
    modules: dict[str, nn.Module], selection: Selection
) -> dict[str | type, set[str]]:
    """Modules that each item of a selection matches, see :func:`match`.

    Raises:
        ValueError: An item matches no module.
        TypeError: It is neither names nor classes.
    """
    chosen = match(modules, selection)
    for item, names in chosen.items():
        if not names:
            outermost = [name for name in modules if name and '.' not in name]
            near = get_close_matches(str(item), modules) or outermost
            raise ValueError(
                f'blocks={item!r} matches no module; there are '
                f'{shorten(near)}; a * stands for one part between dots'
            )
    return chosen


def is_named(name: str, pattern: str) -> bool:
    """Whether a pattern matches a module's name."""
    return bool(name) and PurePosixPath(name.replace('.', '/')).match(
        pattern.replace('.', '/')
    )


def enclosing_names(name: str) -> Iterable[str]:
    """Names of a module and of all that it is in, from inside."""
    while name:
        yield name
        name = name.rpartition('.')[0]
    yield ''


def is_within(name: str, names: set[str]) -> bool:
    """Whether a module is one of those named, or in one of them."""
    return not names.isdisjoint(enclosing_names(name))
