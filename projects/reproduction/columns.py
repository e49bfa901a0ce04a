"""Columns of the tables with our results, as claims look at them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .claims import LABELS
from .metafile import Cell
from .results import load_results


@dataclass(frozen=True)
class Column:
    """One column of one table.

    Attributes:
        table (str): Such as ``'1'``.
        name (str): Such as ``'CIFAR10'``.
        results (dict[str, list[dict]]): Our results of the seeds, by label
            of the row; empty lists where there are none yet.
        metrics (tuple[str, ...]): What the table compares.
    """

    table: str
    name: str
    results: dict[str, list[dict[str, Any]]]
    metrics: tuple[str, ...] = ('Accuracy', )

    def __str__(self) -> str:
        table = f'Table {self.table}' if self.table.isdigit() else self.table
        return f'{table}, {self.name}'

    def label(self, row: str) -> str | None:
        """Label of a row of a claim here, None where there is no such."""
        return next((label for label in LABELS.get(row, (row, ))
                     if label in self.results), None)

    def check(self, rows: Sequence[str]) -> None:
        """Check that rows may be compared.

        Raises:
            ValueError: They are of different options or epochs.
        """
        first = None
        for row in rows:
            for result in self.results[row]:
                options = ' '.join(result['cfg_options']) or '(none)'
                setting = (f'--cfg-options {options}, '
                           f'{result["last"]["epoch"]} epochs')
                first = first or (row, setting)
                if setting != first[1]:
                    raise ValueError(
                        f'{self}: {row} has {setting}, but {first[0]} '
                        f'{first[1]}; claims compare rows of one setting. '
                        'Keep each in its own --results folder')


def read_columns(tables: dict[str, list[Cell]],
                 results: Path) -> list[Column]:
    """Read the columns of all tables, those without results too.

    Args:
        tables (dict[str, list[Cell]]): All tables.
        results (Path): Folder of our results.
    """
    columns = []
    for table, cells in tables.items():
        for name in dict.fromkeys(cell.column for cell in cells):
            chosen = [c for c in cells if c.column == name and c.config]
            columns.append(Column(
                table, name,
                {c.row: load_results(results, c.name) for c in chosen},
                tuple(dict.fromkeys(m for c in chosen for m in c.metrics))))
    return columns
