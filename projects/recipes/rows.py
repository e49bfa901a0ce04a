"""Rows of an experiment in a file: what is there is not run again."""

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path


def experiment(doc: str | None, rows: Path) -> argparse.ArgumentParser:
    """Arguments of a program: its data, and where its rows are."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--data', type=Path, required=True)
    parser.add_argument('--rows', type=Path, default=rows)
    return parser


def read(path: Path) -> list[list[str]]:
    """The rows of a file."""
    return [line.split('\t') for line in path.read_text(
        'utf-8').splitlines()]


def run_missing(path: Path, cases: Iterable[tuple],
                measure: Callable[..., Iterable]) -> list[list[str]]:
    """Measure the cases that a file has not, each written as it comes.

    Args:
        path (Path): File of a row a case: the case, then what was measured.
        cases (Iterable): Names and seeds, all of one length.
        measure (Callable): Called with a case's parts.

    Returns:
        list: All rows of the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = read(path) if path.exists() else []
    for case in cases:
        name = [str(part) for part in case]
        if name not in [row[:len(name)] for row in rows]:
            rows.append([*name, *map(str, measure(*case))])
            with path.open('a', encoding='utf-8') as file:
                file.write('\t'.join(rows[-1]) + '\n')
    return rows
