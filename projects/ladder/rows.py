"""Rows of a ladder: a line of JSON for each run, written as it ends."""

import json
import os
import platform
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[2]


def read_rows(folder: Path) -> Iterator[dict[str, Any]]:
    """All rows of the files of a folder.

    What a kill left of a line, behind the last newline, is no row.
    """
    for path in sorted(folder.glob('*.jsonl')):
        for line in path.read_bytes().split(b'\n')[:-1]:
            yield json.loads(line)


def append_row(path: Path, row: dict[str, Any]) -> None:
    """Add a row to a file, and see it on the disk.

    What a kill left of a line is taken off before.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open('ab+') as file:
        file.seek(0)
        whole = file.read().rfind(b'\n') + 1
        file.truncate(whole)
        line = json.dumps(row, allow_nan=False, ensure_ascii=False)
        file.write(line.encode() + b'\n')
        file.flush()
        os.fsync(file.fileno())


def describe_program() -> dict[str, Any]:
    """CPU, PyTorch and commit with which a row is made."""
    name = platform.processor()
    cpus = Path('/proc/cpuinfo')
    if cpus.is_file():
        names = [
            line.partition(':')[2].strip()
            for line in cpus.read_text().splitlines()
            if line.startswith('model name')
        ]
        name = names[0] if names else name
    commit = subprocess.run(
        ['git', '-C', ROOT, 'describe', '--always', '--dirty', '--abbrev=40'],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    return dict(
        cpu=f'{name}, {torch.backends.cpu.get_cpu_capability()}',
        torch=str(torch.__version__),  # torch.load refuses a TorchVersion
        commit=commit or None,
    )


def markdown(header: list[str], lines: list[list[str]]) -> str:
    """A table."""
    return (
        '\n'.join(
            f'| {" | ".join(line)} |'
            for line in (header, ['---'] * len(header), *lines)
        )
        + '\n'
    )
