"""The tables of the zoos: what a row says, and how a page gets them."""

import json
import re
import sys

import pytest

from benchmarks import zoo


def test_rows_of_families():
    pytest.importorskip('torchvision')
    family, steps, stages, left_out, inserted = zoo.family_row(
        'torchvision', 'resnet18'
    )
    assert (family, steps, stages) == ('resnet', 4, 4)
    # Without the three projected blocks.
    assert inserted == '5 blocks' and 'first of its stage' in left_out


def test_a_second_call_goes_on_and_a_page_keeps_other_sections(
    tmp_path, monkeypatch, capsys
):
    made = []
    monkeypatch.setitem(
        zoo.COMMANDS,
        'families',
        (
            lambda library: ['a', 'b'],
            lambda library, name: made.append(name) or [name, 1, 1, '', ''],
            zoo.family_section,
        ),
    )
    rows, page = tmp_path / 'rows.jsonl', tmp_path / 'page.md'
    rows.write_text(json.dumps(['torch', 'a', ['kept|', 2, 1, '', '']]) + '\n')
    page.write_text('# Head\n\n## other\n\nold\n\n## torch\n\nold\n')
    monkeypatch.setattr(
        sys,
        'argv',
        ['zoo', 'families', str(rows), 'torch', '--page', str(page)],
    )
    for _ in range(2):
        zoo.main()
    assert made == ['b']
    text = page.read_text()
    assert text.startswith('# Head\n\n## other\n\nold\n\n## torch\n\nVersion ')
    assert '| `kept\\|` | `a` | 2 | 1 |' in text and '| `b` | `b` |' in text


@pytest.mark.parametrize(
    'wrong, message',
    [
        pytest.param(
            dict(frozen_stages=1),
            'frozen_stages is 1, not -1; other .*modules',
            id='frozen stage',
        ),
        pytest.param(
            dict(out_indices=(0, 1)),
            r'out_indices is \(0, 1\), not .*in eval',
            id='fewer outputs',
        ),
        pytest.param(
            dict(avg_down=True),
            'other keys: .*layer2.0.downsample',
            id='other shortcut',
        ),
    ],
)
def test_the_comparison_sees_what_differs(wrong, message, monkeypatch):
    """Where ``type`` is exchanged in a host's config."""
    pytest.importorskip('mmdet')
    exchanged = zoo.exchanged
    monkeypatch.setattr(
        zoo, 'exchanged', lambda *args: {**exchanged(*args), **wrong}
    )
    found = zoo.compare(
        dict(type='ResNet', depth=18, base_channels=8, _scope_='mmdet')
    )
    assert re.match(message, found, re.DOTALL), found
