"""The tables of docs/benchmarks/cpu.md are those of its JSON files."""

from benchmarks import tables
from tests.documents import ROOT


def test_the_committed_page_is_up_to_date():
    page = ROOT / 'docs' / 'benchmarks' / 'cpu.md'
    assert tables.SECTION.search(page.read_text())
    assert tables.written(page) == page.read_text()
