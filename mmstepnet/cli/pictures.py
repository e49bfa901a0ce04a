"""Pictures in a folder: which files these are, for all commands alike."""

import os
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FEW = 256
"""Pictures that are measured where nobody says how many."""

ENDINGS = (
    *('.jpg', '.jpeg', '.jfif', '.jpe', '.png', '.gif', '.webp', '.avif'),
    *('.bmp', '.tif', '.tiff', '.ppm', '.pgm'),
)
"""Endings of pictures: torchvision's, and more that Pillow reads. Of a
``.gif`` the first frame counts."""


@dataclass
class Pictures:
    """The pictures of a folder that are measured, the same for all networks.

    Attributes:
        folder (Path): The folder.
        labels (bool): Whether the folders in it are classes.
        samples (int | str, optional): How many are measured, evenly drawn,
            or ``'all'``. None is :data:`FEW`, and all of them with
            ``labels``.
        batch_size (int): How many make a batch.
        classes (list[str]): Names of the classes, in order.
        files (list): The files that are measured, with their classes.

    Raises:
        ValueError: See :func:`list_pictures`.
    """

    folder: Path
    labels: bool = False
    samples: int | str | None = None
    batch_size: int = 16

    def __post_init__(self) -> None:
        pictures = list_pictures(self.folder, self.labels)
        self.classes = list(dict.fromkeys(name for _, name in pictures))
        self.files = self._draw(pictures)

    def _draw(
        self, pictures: list[tuple[Path, str]]
    ) -> list[tuple[Path, str]]:
        """Some of the pictures, evenly over the list."""
        if self.samples == 'all' or (self.samples is None and self.labels):
            return pictures
        count = int(self.samples or FEW)
        if len(pictures) <= count:
            return pictures
        if self.samples is None:
            print(
                f'{count} of {len(pictures)} pictures are measured, evenly '
                f'drawn; --samples all measures every one',
                file=sys.stderr,
            )
        apart = (len(pictures) - 1) / max(count - 1, 1)
        return [pictures[round(k * apart)] for k in range(count)]

    def batches(self) -> list[list[tuple[Path, str]]]:
        """Files and their classes, a list for each batch."""
        return [
            self.files[start : start + self.batch_size]
            for start in range(0, len(self.files), self.batch_size)
        ]


def pictures_of(
    folder: Path | None,
    labels: bool,
    samples: int | str | None,
    batch_size: int,
) -> Pictures | None:
    """The pictures of a folder, or None where no folder is given.

    Args:
        folder (Path, optional): The folder.
        labels (bool): See :class:`Pictures`, also for the other arguments.
        samples (int | str, optional): Likewise.
        batch_size (int): Likewise.

    Raises:
        ValueError: There is no folder, but ``labels`` needs one.
    """
    if folder is not None:
        return Pictures(folder, labels, samples, batch_size)
    if labels:
        raise ValueError(
            '--labels needs a folder of pictures, in which each folder is a '
            'class; batches of a FUNCTION have no such classes'
        )
    return None


def list_pictures(folder: Path, labels: bool) -> list[tuple[Path, str]]:
    """Pictures in a folder and in those in it, sorted.

    Links are followed, and each real file or folder is taken once. Names that
    begin with a dot are left out. A line on stderr counts the other files.

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
        what = 'is a file' if folder.exists() else 'is not there'
        raise ValueError(f'the folder of pictures {folder} {what}')
    parts = [folder]
    others: Counter[str] = Counter()
    seen = {os.path.realpath(folder)}
    if labels:
        inside = [
            path for path in sorted(folder.iterdir()) if path.name[0] != '.'
        ]
        parts = [path for path in inside if path.is_dir()]
        others['outside of the classes'] = len(inside) - len(parts)
        if not inside:
            raise ValueError(f'{folder} is a folder without pictures')
        if not parts:
            raise ValueError(f'{folder} has no folders, which are the classes')
    labelled: list[tuple[Path, str]] = []
    for part in parts:
        pictures = []
        is_linked = part != folder and not _is_new(part, seen)
        for path in () if is_linked else _files(part, seen):
            ending = path.suffix.lower()
            if ending not in ENDINGS:  # another link to it may have one
                others[ending or 'without an ending'] += 1
            elif _is_new(path, seen):
                pictures.append(path)
            else:
                is_linked = True
        if not pictures and is_linked:
            raise ValueError(
                f'{part} has no pictures of its own: it links to those of '
                f'another folder'
            )
        if not pictures:
            reason = f'; {_passed_by(others)}' if others.total() else ''
            raise ValueError(f'{part} is a folder without pictures{reason}')
        for path in sorted(pictures):
            labelled.append((path, part.name))
    if others.total():
        print(f'{folder}: {_passed_by(others)}', file=sys.stderr)
    return labelled


def _passed_by(others: Counter[str]) -> str:
    """Say how many other files there are, and of which kinds."""
    kinds = ', '.join(
        f'{count} {kind}' for kind, count in others.most_common(5) if count
    )
    if others.total() == 1:
        return f'1 other file is passed by ({kinds})'
    return f'{others.total()} other files are passed by ({kinds})'


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
