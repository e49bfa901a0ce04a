"""The rows of a trial: a line of JSON each, written as it comes."""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

PLAN = 'plan'
"""What the first row is of."""


class Rows(dict[str, dict[str, Any]]):
    """Rows by what was run, and their file.

    Args:
        path (Path): The file. What a kill left of a line is no row.
    """

    def __init__(self, path: Path):
        self.path = path
        if path.exists():
            for line in path.read_text().splitlines():
                with suppress(json.JSONDecodeError):
                    row = json.loads(line)
                    self[row['run']] = row

    def append(self, run: str, **row: Any) -> None:
        """Add a row, and see it on the disk."""
        self[run] = dict(run=run, **row)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open('a') as file:
            # The line before may have been cut off.
            file.write('\n' + json.dumps(self[run], allow_nan=False))
            file.flush()
            os.fsync(file.fileno())
