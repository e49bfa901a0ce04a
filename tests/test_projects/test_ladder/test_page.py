"""The page of what a step was worth follows from the rows."""

import csv
import json
from statistics import fmean

import pytest
from scipy import stats

from tests.documents import ROOT

pytest.importorskip('altair', reason='needs requirements/docs.txt')
pytest.importorskip('mmengine', reason='needs OpenMMLab')

from projects.ladder import page  # noqa: E402


@pytest.fixture
def written(monkeypatch, tmp_path):
    """What the command writes, in a folder of its own."""
    monkeypatch.setattr(page, 'RUNS', tmp_path / 'runs.csv')
    monkeypatch.setattr(page, 'PICTURE', tmp_path / 'picture.png')
    return tmp_path


def test_the_page_and_its_files_are_those_of_the_rows(written, capsys):
    page.main()
    assert (written / 'picture.png').stat().st_size < 100_000
    text = (written / 'runs.csv').read_text()
    assert text == (ROOT / 'projects' / 'ladder' / 'runs.csv').read_text()
    runs = list(csv.DictReader(text.splitlines()))
    results = ROOT / 'projects' / 'reproduction' / 'results'
    projects = ROOT / 'projects'
    ladders = [
        *(projects / 'recipes' / 'ladder').glob('*.jsonl'),
        *(projects / 'ladder' / 'results' / 'scratch').glob('*.jsonl'),
    ]
    assert len(runs) == sum(
        len(path.read_text().splitlines()) for path in ladders
    ) + sum(
        len(list((results / study).rglob('seed_*.json')))
        for study in ('moving_gates', 'constant_step')
    )
    table = capsys.readouterr().out
    for network, label in (
        ('resnet20', 'ResNet-20'),
        ('efficientnet_lite0', 'EfficientNet-Lite0'),
    ):
        rows = map(
            json.loads,
            (ROOT / f'projects/recipes/ladder/{network}.jsonl').open(),
        )
        found = {'stepnet': [], 'norms': []}
        for row in rows:
            if row['seed'] < 8 and row['rung'] in found:
                found[row['rung']].append(row['accuracy'])
        lead = fmean(found['stepnet']) - fmean(found['norms'])
        assert (
            f'| {label}, frozen | StepNet − γ and β of the last norms | '
            f'{lead:+.2f} ('
        ) in table


def test_gains_with_the_means_of_gates():
    """By NumPy and SciPy, for each network whose rows are there."""
    folder = ROOT / 'projects' / 'recipes' / 'ladder' / 'replaced'
    found = {cells[0]: cells[1:] for cells in page.replaced()}
    for network, label in page.FROZEN.items():
        rows = [*map(json.loads, (folder / f'{network}.jsonl').open())]
        assert sorted(row['seed'] for row in rows) == [*range(8)]
        seeds, *cells = found[label]
        assert seeds == '8'
        for cell, norms in zip(cells, ('', ', BN again'), strict=True):
            test = stats.ttest_rel(
                [row[f'channel mean{norms}'] for row in rows],
                [row[f'attention{norms}'] for row in rows],
            )
            low, high = test.confidence_interval(0.95)
            gain = (low + high) / 2
            assert cell == f'{gain:+.2f} ({low:+.2f} to {high:+.2f})'


def test_differences_from_scratch():
    """By SciPy, from the rows themselves."""
    folder = ROOT / 'projects' / 'ladder' / 'results' / 'scratch'
    rungs = {}
    for path in folder.glob('seed_*.jsonl'):
        for row in map(json.loads, path.open()):
            rungs.setdefault(row['rung'], {})[row['seed']] = row['accuracy']
    found = {
        (line.first, line.second): line.cells()[2:]
        for line in page.lines()
        if line.setting == page.FROM_SCRATCH
    }
    for first, second, names, seeds in (
        (
            'stepnet',
            'sigmoid-bias',
            ('StepNet', page.NAMES['sigmoid-bias']),
            12,
        ),
        ('stepnet', 'plain', ('StepNet', 'plain'), 12),
        ('norms-half', 'plain', ('plain, γ from 0.5', 'plain'), 6),
    ):
        both = sorted(rungs[first].keys() & rungs[second].keys())
        assert len(both) == seeds
        low, high = stats.ttest_rel(
            [rungs[first][seed] for seed in both],
            [rungs[second][seed] for seed in both],
        ).confidence_interval(0.95)
        points, verdict = found[names]
        mean = (low + high) / 2
        assert points == f'{mean:+.2f} ({low:+.2f} to {high:+.2f})'
        is_asked = (first, second) in page.scratch.QUESTIONS
        assert ('exploratory' in verdict) != is_asked


def test_a_page_that_says_something_else_is_refused(written, monkeypatch):
    text = page.PAGE.read_text('utf-8')
    other = written / 'page.md'
    other.write_text(text.replace('| -0.09 (', '| +0.09 ('), 'utf-8')
    monkeypatch.setattr(page, 'PAGE', other)
    with pytest.raises(SystemExit, match=r'a constant a channel \| -0\.09'):
        page.main()
