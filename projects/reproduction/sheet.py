"""Tables to be shown, in a terminal or as Markdown."""

from dataclasses import dataclass, field

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

NONE = '–'


@dataclass
class Sheet:
    """A table to be shown: texts, not yet in any format.

    Attributes:
        title (str): Its title.
        header (list[str]): Names of its columns.
        rows (list[list[str]]): Its rows.
        notes (list[str]): Lines below it.
        labels (int): How many columns, from the left, hold labels.
    """

    title: str
    header: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)
    labels: int = 1

    def to_markdown(self) -> str:
        """Write it in Markdown."""
        numbers = len(self.header) - self.labels
        align = ['---'] * self.labels + ['---:'] * numbers
        lines = [
            '| ' + ' | '.join(cell.replace('|', r'\|') for cell in row) + ' |'
            for row in (self.header, align, *self.rows)
        ]
        notes = [f'\n{note}' for note in self.notes]
        return '\n'.join([f'**{self.title}**', '', *lines, *notes, ''])

    def print(self, console: Console) -> None:
        """Print it to a terminal."""
        table = Table(title=self.title, box=SIMPLE_HEAD, title_justify='left')
        for place, name in enumerate(self.header):
            table.add_column(
                escape(name),
                justify='left' if place < self.labels else 'right')
        for row in self.rows:
            table.add_row(*map(escape, row))
        console.print(table)
        for note in self.notes:
            console.print(escape(note))
        console.print()
