"""The tables of the zoos: what a row says, and what the page says of them."""

import json
import re
import sys
from collections import Counter, defaultdict

import pytest

from benchmarks import zoo
from tests.documents import ROOT


def test_rows_of_families():
    pytest.importorskip('torchvision')
    family, steps, stages, left_out, inserted = zoo.family_row(
        'torchvision', 'resnet18'
    )
    assert (family, steps, stages) == ('resnet', 4, 4)
    # Without the three projected blocks.
    assert inserted == '5 blocks' and 'first of its stage' in left_out


def test_a_second_call_goes_on_and_a_table_keeps_other_libraries(
    tmp_path, monkeypatch
):
    made = []
    _, _, lines, header = zoo.COMMANDS['families']
    monkeypatch.setitem(
        zoo.COMMANDS,
        'families',
        (
            lambda library: ['a', 'b'],
            lambda library, name: made.append(name) or [name, 1, 1, '', ''],
            lines,
            header,
        ),
    )
    rows, table = tmp_path / 'rows.jsonl', tmp_path / 'table.tsv'
    rows.write_text(json.dumps(['torch', 'a', ['kept|', 2, 0, '', '']]) + '\n')
    table.write_text('library\told\ntimm\told\ntorch\told\nzoo\told\n')
    monkeypatch.setattr(
        sys,
        'argv',
        ['zoo', 'families', str(rows), 'torch', '--table', str(table)],
    )
    for _ in range(2):
        zoo.main()
    assert made == ['b']
    head, *found = (
        line.split('\t') for line in table.read_text().splitlines()
    )
    assert head == ['library', 'version', *header.split(', ')]
    assert [line[0] for line in found] == ['timm', 'torch', 'torch', 'zoo']
    assert found[1][2:] == ['b', 'b', '1', '1', '', '', '1', '']
    assert found[2][2:] == ['kept|', 'a', '2', '0', '', '', '1', '']


def lines_of(name):
    """Lines of a table of the zoos by library, as dicts."""
    path = ROOT / 'docs' / 'benchmarks' / f'{name}.tsv'
    head, *lines = (
        line.split('\t') for line in path.read_text('utf-8').splitlines()
    )
    found = defaultdict(list)
    for line in lines:
        assert len(line) == len(head)
        found[line[0]].append(dict(zip(head, line)))
    return found


def test_the_page_sums_up_the_configs():
    page = (ROOT / 'docs' / 'any_network.md').read_text('utf-8')
    tables = lines_of('backbones')
    assert len(tables) == 9
    for project, lines in tables.items():
        counts = Counter()
        for line in lines:
            counts[line['verdict']] += int(line['configs'])
            verdict = line['verdict'] if line['why'] else ''
            assert line['why'].startswith(
                '' if verdict == 'different' else verdict
            )
        cells = [counts.total(), *(counts[kind] for kind in zoo.KINDS)]
        version = lines[0]['version']
        shown = ' | '.join(map(str, cells))
        assert f'\n| {project} {version} | {shown} |' in page


def test_the_page_sums_up_the_families():
    page = (ROOT / 'docs' / 'any_network.md').read_text('utf-8')
    for library, lines in lines_of('families').items():
        models, without = 0, 0
        for line in lines:
            run, names = int(line['models run']), line['without steps']
            models += run
            without += run if names == 'all' else len(names.split(', '))
            without -= not names
        cells = models, len(lines), models - without
        shown = ' | '.join(map(str, cells))
        version = lines[0]['version']
        assert f'\n| {library} {version} | {shown} |' in page


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
