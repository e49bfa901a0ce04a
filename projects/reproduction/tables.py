"""The tables of the metafiles: which config stands in which row.

A model's ``Metadata`` places its config in tables, with the paper's figures
where the paper has the table:

    Tables:
      '1':
        Row: SE
        Column: CIFAR10
        Paper: {Parameters: 1.91, Accuracy: 94.26 ± 0.14}
      small:
        Row: SE
        Column: CIFAR10
        Metrics: [Accuracy]

A collection's ``Metadata`` may list ``Rows Without Config``, of the same
form, a list to each table: rows of the paper that cannot be run.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import yaml

ROOT = Path(__file__).resolve().parents[2]
INDEX = 'model-index.yml'


class Metric(NamedTuple):
    """A figure of a table: the host's name, factor, decimals."""

    key: str
    scale: float = 1
    decimals: int = 2


METRICS = {
    'Accuracy': Metric('accuracy/top1'),
    'AP': Metric('coco/bbox_mAP', 100, 1),
    'AP50': Metric('coco/bbox_mAP_50', 100, 1),
    'AP75': Metric('coco/bbox_mAP_75', 100, 1),
    'APs': Metric('coco/bbox_mAP_s', 100, 1),
    'APm': Metric('coco/bbox_mAP_m', 100, 1),
    'APl': Metric('coco/bbox_mAP_l', 100, 1),
    'BLEU': Metric('translation/BLEU'),
    'Perplexity': Metric('translation/perplexity'),
}
"""Metrics by the names that metafiles and tables use."""


@dataclass(frozen=True)
class Cell:
    """One config's place in a table.

    Attributes:
        table (str): Such as ``'1'`` or ``'digits'``.
        row (str): Label of the row.
        column (str): Data set or backbone, where a table has several.
        metrics (tuple[str, ...]): What is compared, names of ``METRICS``;
            the first chooses the best epoch.
        paper (dict): The paper's figures by metric, and its number of
            parameters in millions as ``'Parameters'``.
        config (Path, optional): The config; None where there can be none.
    """

    table: str
    row: str
    column: str
    metrics: tuple[str, ...]
    paper: dict[str, str | float]
    config: Path | None

    @property
    def name(self) -> str:
        """Basename of the config, by which its runs are known."""
        return '' if self.config is None else self.config.stem


def read_tables(root: Path = ROOT) -> dict[str, list[Cell]]:
    """Read all tables of the checkout's metafiles, those of numbers first.

    Args:
        root (Path): Folder of ``model-index.yml``. Defaults to this checkout.
    """
    indices = [
        root / INDEX,
        *sorted(root.glob(f'projects/*/{INDEX}'), reverse=True),
    ]
    tables: dict[str, list[Cell]] = {}
    for index in indices:
        for name in _load(index)['Import']:
            for table, entry, config in _entries(_load(root / name)):
                paper = entry.get('Paper', {})
                metrics = tuple(entry.get('Metrics', paper))
                tables.setdefault(str(table), []).append(
                    Cell(
                        str(table),
                        str(entry['Row']),
                        str(entry['Column']),
                        tuple(m for m in metrics if m != 'Parameters'),
                        paper,
                        config and root / config,
                    )
                )
    return dict(
        sorted(
            tables.items(),
            key=lambda item: (
                not item[0].isdigit(),
                int(item[0]) if item[0].isdigit() else 0,
            ),
        )
    )


def select_cells(cells: Sequence[Cell], rows: Sequence[str]) -> list[Cell]:
    """Choose cells by the labels of their rows or the names of their configs.

    Args:
        cells (Sequence[Cell]): Of one table.
        rows (Sequence[str]): In any case; none means all.

    Raises:
        ValueError: There is no such row.
    """
    wanted = {row.casefold(): row for row in rows}
    known = {name.casefold() for c in cells for name in (c.row, c.name)}
    if missing := [row for key, row in wanted.items() if key not in known]:
        raise ValueError(
            f'table {cells[0].table!r} has no row {missing[0]!r}; expected '
            f'one of {"; ".join(dict.fromkeys(c.row for c in cells))}'
        )
    return [
        c
        for c in cells
        if not rows or {c.row.casefold(), c.name.casefold()} & wanted.keys()
    ]


def _load(path: Path) -> dict:
    return yaml.safe_load(path.read_text(encoding='utf-8'))


def _entries(metafile: dict) -> Iterator[tuple[str, dict, str | None]]:
    for model in metafile['Models']:
        for table, entry in (
            model.get('Metadata', {}).get('Tables', {}).items()
        ):
            yield table, entry, model['Config']
    for collection in metafile.get('Collections', []):
        for table, entries in (
            collection.get('Metadata', {})
            .get('Rows Without Config', {})
            .items()
        ):
            yield from ((table, entry, None) for entry in entries)
