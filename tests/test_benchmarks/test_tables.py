"""The tables of docs/benchmarks/cpu.md, and the page that repeats some."""

import re

from benchmarks import tables
from tests.documents import ROOT

CELL = r'[\d.]+ \([\d.]+-[\d.]+\)'


def test_the_committed_page_is_up_to_date():
    page = ROOT / 'docs' / 'benchmarks' / 'cpu.md'
    assert tables.SECTION.search(page.read_text())
    assert tables.written(page) == page.read_text()


def test_the_page_of_speed_repeats_the_rows_of_other_networks():
    """Their cells, the ranges over them, and the share of what they add."""
    docs = ROOT / 'docs'
    rows = [
        [(float(cell.split()[0]), cell) for cell in re.findall(CELL, line)]
        for line in (docs / 'benchmarks' / 'cpu.md').read_text().splitlines()
    ]
    of_three = [row for row in rows if len(row) == 3]
    networks, branches = of_three[:3], of_three[3:]
    assert len(branches) == 5
    page = (docs / 'speed.md').read_text()
    for row in networks:
        assert f'| {" | ".join(cell for _, cell in row)} |' in page
    by_hand, by_reference, _ = (
        sum(row[k][0] - 1 for row in networks) for k in range(3)
    )
    assert f' {by_hand / by_reference:.2f} of what they add ' in page
    text = ' '.join(page.split())
    for group, digits, words in (
        (networks, 2, '| {} to {} | {} to {} | {} to {} |'),
        (
            branches,
            1,
            '{} to {} times the plain sum, by the reference path {} to {}, '
            'SE {} to {}',
        ),
    ):
        columns = [[row[k][0] for row in group] for k in range(3)]
        ends = [end for c in columns for end in (min(c), max(c))]
        assert words.format(*(f'{end:.{digits}f}' for end in ends)) in text
