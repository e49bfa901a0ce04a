"""Blocks that a user chooses, by names and classes."""

from collections.abc import Sequence
from pathlib import PurePosixPath

import torch.nn as nn

Selection = str | type | Sequence[str | type]
"""Blocks by name pattern, by class, or a mixture of both."""


def select(modules: dict[str, nn.Module], selection: Selection) -> set[str]:
    """Names of the modules that a selection means.

    Args:
        modules (dict): Modules by name.
        selection (str | type | Sequence): Classes of blocks, or patterns of
            their names, from the right and part by part as in
            :meth:`pathlib.PurePath.match`: ``'layer3.*'`` means every child
            of any ``layer3``.

    Raises:
        ValueError: An item matches no module.
        TypeError: It is neither names nor classes.
    """
    items = items_of(selection)
    if not isinstance(items, Sequence) or not items:
        raise TypeError("blocks must be name patterns, such as 'layer3.*', or "
                        f'classes of blocks; got {selection!r}')
    chosen = set()
    for item in items:
        if isinstance(item, type):
            found = {n for n, m in modules.items() if isinstance(m, item)}
        elif isinstance(item, str):
            found = {n for n in modules if n and item and PurePosixPath(
                n.replace('.', '/')).match(item.replace('.', '/'))}
        else:
            raise TypeError("blocks must hold name patterns, such as "
                            f"'layer3.*', or classes; got {item!r}")
        if not found:
            names = [n for n, m in modules.items() if n and not any(
                m.children())]
            some = ', '.join(names[::max(len(names) // 4, 1)][:5])
            raise ValueError(
                f'blocks={item!r} matches no module. Names look like '
                f'{some or "nothing"}; a * stands for one part between dots')
        chosen |= found
    return chosen


def items_of(selection: Selection) -> Sequence:
    """Items of a selection, which may be only one."""
    return [selection] if isinstance(selection, (str, type)) else selection
