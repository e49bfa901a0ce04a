"""Put the tables of benchmark.py's JSON files into a Markdown page.

    python -m benchmarks.tables docs/benchmarks/cpu.md

Between ``<!-- benchmark FILE -->`` and ``<!-- end of FILE -->`` the page gets
the tables of FILE, whose path starts at the page.
"""

import argparse
import json
import re
from pathlib import Path

SECTION = re.compile(
    r'(<!-- benchmark (\S+) -->\n)(.*?)(<!-- end of \2 -->)', re.DOTALL
)


def tables(result: dict) -> str:
    """Write a file's tables, settings that compare alike side by side.

    Args:
        result (dict): What benchmark.py wrote.
    """
    groups = {}
    for table in result['tables']:
        shape = table.get('shape')
        setting = [
            table['mode'],
            table.get('dtype'),
            'compiled' if table.get('compiled') else None,
            table['memory_format'] if shape else None,
        ]
        networks = tuple(row['network'] for row in table['rows'])
        title = ', '.join(filter(None, setting))
        groups.setdefault((title, networks), {})[
            shape or table['memory_format']
        ] = table['rows']
    parts = [
        _table(title, networks, columns)
        for (title, networks), columns in groups.items()
    ]
    rounds = len(result['tables'][0]['rows'][0]['seconds'])
    parts.append(
        f'Medians of {rounds} rounds with quartiles; {result["device"]}, '
        f'{result["threads"]} thread{"s" * (result["threads"] > 1)}, '
        f'{result["clock"]} clock, PyTorch {result["torch"]}.\n'
    )
    return '\n'.join(parts)


def _table(title: str, networks: tuple[str, ...], columns: dict) -> str:
    first = next(iter(columns.values()))
    has_bytes = 'saved_bytes' in first[0]
    header = [
        f'{title}, over {networks[0]}',
        *columns,
        *['bytes saved for backward'] * has_bytes,
    ]
    rows = []
    for i, network in enumerate(networks[1:], 1):
        cells = [
            f'{rows_[i]["ratio"]:.3f} ({rows_[i]["low"]:.3f}-'
            f'{rows_[i]["high"]:.3f})'
            for rows_ in columns.values()
        ]
        if has_bytes:
            share = first[i]['saved_bytes'] / first[0]['saved_bytes']
            cells.append(f'{share:.3f}')
        rows.append([network, *cells])
    return markdown(header, rows)


def markdown(header: list, rows: list[list]) -> str:
    """A table in Markdown."""
    return ''.join(
        '| ' + ' | '.join(str(c).replace('|', r'\|') for c in row) + ' |\n'
        for row in (header, ['---'] * len(header), *rows)
    )


def written(page: Path) -> str:
    """Return the page with its tables as the JSON files have them."""

    def section(found: re.Match) -> str:
        start, name, _, end = found.groups()
        result = json.loads((page.parent / name).read_text())
        return f'{start}\n{tables(result)}\n{end}'

    return SECTION.sub(section, page.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument('page', type=Path, help='Markdown file')
    page = parser.parse_args().page
    page.write_text(written(page))


if __name__ == '__main__':
    main()
