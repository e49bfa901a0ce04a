"""The tables of docs/speed.md are those of its JSON files."""

import json

from benchmarks import tables
from tests.documents import ROOT


def test_the_committed_page_is_up_to_date():
    page = ROOT / 'docs' / 'speed.md'
    assert tables.SECTION.search(page.read_text())
    assert tables.written(page) == page.read_text()


def test_settings_that_compare_alike_stand_side_by_side(tmp_path):
    def rows(*ratios):
        return [dict(network=name, ratio=ratio, low=ratio - 0.1,
                     high=ratio + 0.2, seconds=[1, 2, 3], saved_bytes=saved)
                for name, ratio, saved in zip(
                    ('host', 'StepNet'), ratios, (200, 210))]

    setting = dict(mode='train', dtype='float32', compiled=False)
    (tmp_path / 'cpu.json').write_text(json.dumps(dict(
        torch='2.12', device='x86_64', threads=1, clock='cpu', tables=[
            dict(setting, memory_format='contiguous', rows=rows(1, 1.5)),
            dict(setting, memory_format='channels_last', rows=rows(1, 0.7)),
            dict(mode='tail', shape='4x2', memory_format='contiguous',
                 rows=[dict(network='plain', ratio=1, low=1, high=1),
                       dict(network='SE', ratio=2, low=1.5, high=4)])])))
    page = tmp_path / 'page.md'
    page.write_text('before <!-- benchmark cpu.json -->\nold\n'
                    '<!-- end of cpu.json --> after')
    for _ in range(2):
        page.write_text(tables.written(page))
    assert page.read_text() == '''before <!-- benchmark cpu.json -->

| train, float32, over host | contiguous | channels_last | bytes saved for backward |
| --- | --- | --- | --- |
| StepNet | 1.500 (1.400-1.700) | 0.700 (0.600-0.900) | 1.050 |

| tail, contiguous, over plain | 4x2 |
| --- | --- |
| SE | 2.000 (1.500-4.000) |

Medians of 3 rounds with quartiles; x86_64, 1 thread, cpu clock, PyTorch 2.12.

<!-- end of cpu.json --> after'''  # noqa: E501
