"""Files that are whole or not there."""

import os
import shutil
import tempfile
from pathlib import Path

TEMPORARY = '.unfinished'
"""Ending of the name under which a file is written."""


def write_whole(path: str | Path, content: bytes | str) -> None:
    """Write a file under another name, and rename it when it is whole.

    A process that is killed, or a disk that is full, leaves what was there.
    Folders are made.

    Args:
        path (str | Path): Where.
        content (bytes | str): What to write; text in UTF-8.

    Raises:
        OSError: It could not be written; nothing was changed.
    """
    path = Path(path)
    if isinstance(content, str):
        content = content.encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(
        TEMPORARY, f'.{path.name}.', path.parent)
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
    except OSError as error:
        free = shutil.disk_usage(path.parent).free
        raise OSError(
            error.errno,
            f'{error.strerror}; {path} of {len(content) / 2**20:.1f} MiB was '
            f'not written, {free / 2**20:.1f} MiB are free there. What was '
            'there before is untouched') from error
    finally:
        Path(temporary).unlink(missing_ok=True)


def remove_unfinished(folder: str | Path) -> None:
    """Remove what a killed process left half-written."""
    for path in Path(folder).glob(f'.*{TEMPORARY}'):
        path.unlink(missing_ok=True)
