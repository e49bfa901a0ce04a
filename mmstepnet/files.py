"""Files that are whole or not there."""

import os
import tempfile
import time
from pathlib import Path

TEMPORARY = '.unfinished'
"""Ending of the name under which a file is written."""

ABANDONED = 3600.0
"""Seconds without a write after which a file under such a name is removed.
A younger one may belong to another job, which is still writing it."""


def write_whole(path: str | Path, content: bytes | str) -> None:
    """Write a file under another name, and rename it when it is whole.

    A process that is killed, or a disk that is full, leaves what was there.
    Folders are made. A symbolic link stays, and what it points to is written.

    Args:
        path (str | Path): Where.
        content (bytes | str): What to write; text in UTF-8.

    Raises:
        OSError: It could not be written; nothing was changed.
    """
    path = Path(os.path.realpath(path))
    if isinstance(content, str):
        content = content.encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(TEMPORARY, '.', path.parent)
    try:
        with os.fdopen(descriptor, 'wb') as file:
            file.write(content)
            file.flush()
            # Else the rename may reach the disk before the bytes do.
            os.fsync(file.fileno())
        # As open() would have made it; mkstemp's are private.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def remove_unfinished(folder: str | Path) -> None:
    """Remove what a killed process left half-written, an hour ago or more.

    Younger files may be those of another process, which still writes them.
    """
    for path in Path(folder).glob(f'.*{TEMPORARY}'):
        try:
            if time.time() - path.stat().st_mtime > ABANDONED:
                path.unlink()
        except FileNotFoundError:  # its process has renamed it meanwhile
            pass
