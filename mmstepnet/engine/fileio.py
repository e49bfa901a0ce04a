"""Files that are whole or not there."""

import os
import shutil
import tempfile
from pathlib import Path

from mmengine.fileio import LocalBackend, register_backend

TEMPORARY = '.unfinished'
"""Ending of the name under which a file is written."""


class WholeFileBackend(LocalBackend):
    """mmengine's local files, each renamed to its name when it is whole.

    A job that is killed, or a disk that is full, leaves what was there.
    """

    def put(self, obj: bytes, filepath: str | Path) -> None:
        """Write bytes.

        Args:
            obj (bytes): What to write.
            filepath (str | Path): Where.

        Raises:
            OSError: It could not be written; nothing was changed.
        """
        path = Path(filepath)
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(
            TEMPORARY, f'.{path.name}.', path.parent)
        try:
            with os.fdopen(descriptor, 'wb') as file:
                file.write(obj)
                file.flush()
                # Else the rename may reach the disk before the bytes do.
                os.fsync(file.fileno())
            # As open() would have made it; mkstemp's are private.
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(temporary, 0o666 & ~umask)
            os.replace(temporary, path)
        except OSError as error:
            Path(temporary).unlink(missing_ok=True)
            free = shutil.disk_usage(path.parent).free
            raise OSError(
                error.errno,
                f'{error.strerror}; {path} of {len(obj) / 2**20:.1f} MiB was '
                f'not written, {free / 2**20:.1f} MiB are free there. What '
                'was there before is untouched') from error
        finally:
            Path(temporary).unlink(missing_ok=True)

    def put_text(self,
                 obj: str,
                 filepath: str | Path,
                 encoding: str = 'utf-8') -> None:
        """Write text, see :meth:`put`."""
        self.put(obj.encode(encoding), filepath)


def write_whole_files() -> None:
    """Make mmengine's local files of this process whole or not there."""
    register_backend('local', WholeFileBackend, force=True, prefixes='')


def remove_unfinished(folder: str | Path) -> None:
    """Remove what a killed process left half-written."""
    for path in Path(folder).glob(f'.*{TEMPORARY}'):
        path.unlink(missing_ok=True)
