"""Pictures in a folder: which files these are, for all commands alike."""

import os
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

MORE = '.gif', '.jfif', '.jpe', '.avif'
"""Endings of pictures that torchvision does not name. Of a ``.gif`` the first
frame counts."""


@cache  # once for all networks of a command
def list_pictures(folder: Path, labels: bool) -> list[tuple[Path, str]]:
    """Pictures in a folder and in those in it, sorted.

    Links are followed, and each real file or folder is taken once. Names that
    begin with a dot are left out. A line on stderr counts what is passed by.

    Args:
        folder (Path): The folder.
        labels (bool): Whether the folders in it are classes.

    Returns:
        list: Files with the names of their classes. Without ``labels`` it is
        the name of the folder for all.

    Raises:
        ValueError: There is no such folder, or no picture in it or in one of
            the classes.
    """
    if not folder.is_dir():
        raise ValueError(f'there is no folder {folder}')
    parts = [folder]
    found, others, seen = [], Counter(), {os.path.realpath(folder)}
    if labels:
        inside = [
            path for path in sorted(folder.iterdir()) if path.name[0] != '.'
        ]
        parts = [path for path in inside if path.is_dir()]
        others['outside of the classes'] = len(inside) - len(parts)
        if not parts:
            raise ValueError(
                f'{folder} has no folders, which are the classes with --labels'
            )
    endings = _endings()
    for part in parts:
        before = len(found)
        is_new = part == folder or _is_new(str(folder), part.name, seen)
        for path in sorted(_files(part, seen)) if is_new else ():
            ending = path.suffix.lower()
            if ending in endings:
                found.append((path, part.name))
            else:
                others[ending or 'without an ending'] += 1
        if len(found) == before:
            raise ValueError(
                f'the folder {part} has no pictures of its own; '
                f'{_passed_by(others)}'
            )
    if others.total():
        print(f'{folder}: {_passed_by(others)}', file=sys.stderr)
    return found


def _endings() -> set[str]:
    from torchvision.datasets.folder import IMG_EXTENSIONS

    return {*IMG_EXTENSIONS, *MORE}


def _passed_by(others: Counter[str]) -> str:
    kinds = ', '.join(
        f'{count} {kind}' for kind, count in others.most_common(5) if count
    )
    return f'{others.total()} other files are passed by' + (
        f' ({kinds})' if kinds else ''
    )


def _files(folder: Path, seen: set[str]) -> Iterator[Path]:
    """Files below a folder, whose real paths are not among those seen."""
    for root, folders, files in os.walk(folder, followlinks=True):
        folders[:] = [
            name for name in sorted(folders) if _is_new(root, name, seen)
        ]
        yield from (
            Path(root, name)
            for name in sorted(files)
            if _is_new(root, name, seen)
        )


def _is_new(root: str, name: str, seen: set[str]) -> bool:
    """Whether a name has no dot in front, and nobody was there before."""
    real = os.path.realpath(os.path.join(root, name))
    if name[0] == '.' or real in seen:
        return False
    seen.add(real)
    return True
