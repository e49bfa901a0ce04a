"""RESULTS.md is what the report makes of the rows; the numbers, otherwise."""

import json
import re
import shutil

import numpy as np
import pytest
from scipy.stats import ttest_rel

from projects.reproduction import report
from projects.reproduction.claims import Claim
from projects.reproduction.paper import PAGE
from projects.reproduction.rows import RESULTS, read_rows
from projects.reproduction.tables import read_tables

TABLES = read_tables()


def accuracies(name):
    """By seed, of the files themselves."""
    rows = (
        json.loads(path.read_text())
        for path in (RESULTS / name).glob('seed_*.json')
    )
    return {
        row['seed']: row['last']['metrics']['accuracy/top1'] for row in rows
    }


def test_the_page_is_what_the_report_writes(tmp_path):
    page = tmp_path / 'RESULTS.md'
    shutil.copy(PAGE, page)
    text = PAGE.read_text('utf-8')
    page.write_text(
        re.sub('(?s)(<!-- [a-z ]+ -->\n).+?(<!-- end -->)', r'\1\2', text),
        'utf-8',
    )
    assert len(page.read_text('utf-8')) < len(text) - 3000
    report.write_report(TABLES, page, folder=tmp_path)
    assert page.read_text('utf-8') == text
    written = sorted(path.name for path in tmp_path.glob('*.tsv'))
    assert len(written) == 4
    for name in written:
        assert (tmp_path / name).read_bytes() == (RESULTS / name).read_bytes()


@pytest.mark.parametrize('other, label', [('plain', 'Plain'), ('se', 'SE')])
def test_the_confirmatory_claims(other, label):
    """Mean, p and both one-sided tests, by SciPy's test of two samples."""
    ours, theirs = (
        accuracies(f'resnet20_{name}_cifar10-10k')
        for name in ('stepnet', other)
    )
    a, b = ([rows[s] for s in range(3, 35)] for rows in (ours, theirs))
    found = ttest_rel(a, b)
    low, high = found.confidence_interval()
    small = max(
        ttest_rel(np.add(a, 0.5), b, alternative='greater').pvalue,
        ttest_rel(np.subtract(a, 0.5), b, alternative='less').pvalue,
    )
    wanted = [
        f'StepNet − {label}',
        f'{np.mean(np.subtract(a, b)):+.2f}, 95% interval {low:+.2f} to '
        f'{high:+.2f} (32 seeds)',
        f'{found.pvalue:.2g}',
        f'{small:.2g}',
        '0.025',
    ]
    lines = (RESULTS / 'planned.tsv').read_text('utf-8').splitlines()
    assert wanted in [line.split('\t')[2:] for line in lines]


def made(values):
    """Rows of a label: a value a seed."""
    return [
        dict(seed=seed, last=dict(epoch=1, metrics={'accuracy/top1': value}))
        for seed, value in values.items()
    ]


def test_seeds_are_paired_and_planned_ones_alone_count():
    rows = {
        'A': made({0: 9.0, 1: 5.0, 2: 6.0, 4: 1.0}),
        'B': made({2: 1.0, 1: 2.0, 0: 0.0, 3: 7.0}),
    }
    claim = Claim('', [('C|A', 'B'), ('A', 'D')], behind=0.5)
    (found,) = report.comparisons(claim, rows, 'Accuracy')
    assert found.name == 'A − B + 0.5'
    assert found.size == pytest.approx((9 + 3 + 5) / 3 + 0.5)
    planned = claim._replace(seeds=range(1, 3), behind=0.0)
    (found,) = report.comparisons(planned, rows, 'Accuracy')
    assert found.size == pytest.approx(4) and found.found.endswith('2 seeds)')
    waiting = claim._replace(seeds=range(1, 4), text='x')
    ((*_, verdict),), (test,) = report.planned_lines(
        [waiting], lambda claim: rows
    )
    assert verdict == 'no verdict before all planned seeds'
    assert test[3] == '2 of 3 seeds'


def test_every_row_is_of_its_config_and_seed():
    """And no configs' rows are without a table."""
    names = {c.name for cells in TABLES.values() for c in cells}
    experiments = 'warm_start', 'constant_step', 'moving_gates'
    folders = [
        f
        for f in RESULTS.iterdir()
        if f.is_dir() and f.name not in experiments
    ]
    assert len(folders) > 70
    for folder in folders:
        assert folder.name in names
        rows = read_rows(folder.name)
        assert [f'seed_{row["seed"]}.json' for row in rows] == sorted(
            (p.name for p in folder.iterdir()),
            key=lambda name: int(re.search(r'\d+', name)[0]),
        )
        assert {row['config'] for row in rows} == {folder.name}
        assert len({row['last']['epoch'] for row in rows}) == 1
