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

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from .metrics import METRICS

INDEX = 'model-index.yml'
FIGURE = re.compile(r'(\d+(?:\.\d+)?)(?:\s*±\s*(\d+(?:\.\d+)?))?')


@dataclass(frozen=True)
class Figure:
    """Mean and, where known, standard deviation."""

    mean: float
    std: float | None = None

    @classmethod
    def parse(cls, text: str | float) -> 'Figure':
        """Read ``'94.26 ± 0.14'`` or ``36.9``.

        Raises:
            ValueError: It is neither.
        """
        match = FIGURE.fullmatch(str(text).strip())
        if match is None:
            raise ValueError(f"expected a figure such as '94.26 ± 0.14', got "
                             f'{text!r}')
        return cls(*(None if part is None else float(part)
                     for part in match.groups()))

    def format(self, decimals: int) -> str:
        """Write it with so many decimals."""
        text = f'{self.mean:.{decimals}f}'
        if self.std is not None:
            text += f' ± {self.std:.{decimals}f}'
        return text


@dataclass(frozen=True)
class Cell:
    """One config's place in a table.

    Attributes:
        table (str): Such as ``'1'`` or ``'digits'``.
        row (str): Label of the row.
        column (str): Data set or backbone, where a table has several.
        metrics (tuple[str, ...]): What is compared, names of ``METRICS``;
            the first chooses the best epoch.
        paper (dict[str, Figure]): The paper's figures by metric; empty where
            the row is not the paper's.
        paper_parameters (float, optional): The paper's #P in millions.
        config (Path, optional): The config; None where there can be none.
    """

    table: str
    row: str
    column: str
    metrics: tuple[str, ...]
    paper: dict[str, Figure]
    paper_parameters: float | None = None
    config: Path | None = None

    @property
    def name(self) -> str:
        """Basename of the config, by which its runs are known."""
        return '' if self.config is None else self.config.stem


def read_tables(root: str | Path) -> dict[str, list[Cell]]:
    """Read all tables of the metafiles that the checkout's indices import.

    They are ``model-index.yml`` and those of the projects.

    Args:
        root (str | Path): Folder of ``model-index.yml`` and ``configs/``.

    Returns:
        dict[str, list[Cell]]: Cells by table: those of numbers first, by
        number, the others in the metafiles' order.

    Raises:
        FileNotFoundError: A file is missing.
        ValueError: An entry is not of the form above.
    """
    root = Path(root)
    tables: dict[str, list[Cell]] = {}
    for path in metafiles(root):
        for table, entry, config in _entries(_load(path)):
            try:
                cell = _cell(str(table), entry, config and root / config)
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f'{path}: {entry} in table {table!r}: '
                                 f'{error}') from error
            tables.setdefault(cell.table, []).append(cell)
    # The paper's come first, by number.
    order = sorted(tables, key=lambda t: (not t.isdigit(),
                                          int(t) if t.isdigit() else 0))
    return {table: tables[table] for table in order}


def metafiles(root: Path) -> Iterator[Path]:
    """Metafiles of the library's configs, then the first paper's, others'."""
    for index in (root / INDEX, *sorted(root.glob(f'projects/*/{INDEX}'),
                                        reverse=True)):
        for name in _load(index)['Import']:
            yield root / name


def select_cells(tables: dict[str, list[Cell]],
                 table: str,
                 rows: Sequence[str] = ()) -> list[Cell]:
    """Choose a table's cells.

    Args:
        tables (dict[str, list[Cell]]): All tables.
        table (str): One of them.
        rows (Sequence[str]): Labels of rows, in any case and with or without
            a leading ``+``, or names of configs. None means all.

    Raises:
        ValueError: There is no such table or row; the message lists all.
    """
    if table not in tables:
        raise ValueError(f'there is no table {table!r}; expected one of '
                         f'{", ".join(tables)}')
    cells = tables[table]
    if not rows:
        return cells
    wanted = {_plain(row): row for row in rows}
    chosen = [
        cell for cell in cells
        if {_plain(cell.row), _plain(cell.name)} & set(wanted)
    ]
    for cell in chosen:
        wanted.pop(_plain(cell.row), None)
        wanted.pop(_plain(cell.name), None)
    if wanted:
        labels = dict.fromkeys(cell.row for cell in cells)
        raise ValueError(
            f'table {table!r} has no row '
            f'{", ".join(map(repr, wanted.values()))}; its rows are '
            f'{"; ".join(labels)}; configs are named by their basename')
    return chosen


def _plain(label: str) -> str:
    return ''.join(label.split()).removeprefix('+').casefold()


def _load(path: Path) -> dict:
    if not path.is_file():
        raise FileNotFoundError(f'there is no {path}; expected the checkout '
                                'of mmstepnet, or its .mim folder')
    return yaml.safe_load(path.read_text(encoding='utf-8'))


def _entries(metafile: dict) -> Iterator[tuple[str, dict, str | None]]:
    for model in metafile['Models']:
        tables = model.get('Metadata', {}).get('Tables', {})
        for table, entry in tables.items():
            yield table, entry, model['Config']
    for collection in metafile.get('Collections', []):
        lost = collection.get('Metadata', {}).get('Rows Without Config', {})
        for table, entries in lost.items():
            for entry in entries:
                yield table, entry, None


def _cell(table: str, entry: dict, config: Path | None) -> Cell:
    paper = dict(entry.get('Paper', {}))
    parameters = paper.pop('Parameters', None)
    metrics = tuple(entry.get('Metrics', paper))
    unknown = set(metrics) - set(METRICS)
    if unknown or not metrics:
        raise ValueError(f'Paper or Metrics must name some of '
                         f'{", ".join(METRICS)}; got '
                         f'{", ".join(sorted(unknown)) or "none"}')
    return Cell(
        table=table, row=str(entry['Row']), column=str(entry['Column']),
        metrics=metrics,
        paper={name: Figure.parse(text) for name, text in paper.items()},
        paper_parameters=parameters, config=config)
