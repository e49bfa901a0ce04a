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
        pictures = []
        is_new = part == folder or _is_new(part, seen)
        for path in _files(part, seen) if is_new else ():
            ending = path.suffix.lower()
            if ending not in endings:  # another link to it may have one
                others[ending or 'without an ending'] += 1
            elif _is_new(path, seen):
                pictures.append(path)
        if not pictures:
            raise ValueError(
                f'the folder {part} has no pictures of its own; '
                f'{_passed_by(others)}'
            )
        found += [(path, part.name) for path in sorted(pictures)]
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
    """Files below a folder whose names have no dot in front.

    A folder whose real path is among those seen is left out.
    """
    for root, folders, files in os.walk(folder, followlinks=True):
        folders[:] = [
            name
            for name in sorted(folders)
            if name[0] != '.' and _is_new(Path(root, name), seen)
        ]
        yield from (
            Path(root, name) for name in sorted(files) if name[0] != '.'
        )


def _is_new(path: Path, seen: set[str]) -> bool:
    """Whether nobody was at a real path before; from now on it is seen."""
    real = os.path.realpath(path)
    is_new = real not in seen
    seen.add(real)
    return is_new
