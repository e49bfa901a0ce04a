"""Finished studies: every number of their pages that has rows is theirs.

Their programs are gone; what is computed here is their plans' arithmetic.
"""

import json
import re
from collections import defaultdict
from itertools import product

import numpy as np
import pytest
from scipy import stats

from tests.documents import ROOT
from tests.test_projects.test_reproduction.test_papers_tables import (
    NUMBER,
    near,
)

RESNETS = ('resnet20', 'resnet32', 'resnet44')


def page(name):
    text = (ROOT / name).read_text('utf-8')
    return text.replace('−', '-').splitlines()


def rows(name):
    lines = (ROOT / 'projects' / name).read_text().splitlines()
    return [line.split('\t') for line in lines]


def interval(values, digits):
    """Mean and half of Student's 95 % interval, as the pages write them."""
    text = f'{np.mean(values):.{digits}f}'
    if len(values) > 1:
        half = stats.sem(values) * stats.t.isf(0.025, len(values) - 1)
        text += f' ± {half:.{digits}f}'
    return text.replace('-0.000 ', '0.000 ')


def grouped(found, key, values):
    """Rows of the same network and choice together, their numbers by row."""
    groups = defaultdict(list)
    for row in found:
        groups[tuple(row[k] for k in key)].append(
            [float(row[k]) for k in values])
    return {name: np.transpose(group) for name, group in groups.items()}


@pytest.mark.parametrize('study, file, key, values, digits', [
    ('recipes', 'rows.tsv', (0, 1), (3, 4), (2, 4)),
    ('decisions', 'placement.tsv', (1, 2), (3, 4), (2, 4)),
    ('pruning', 'fine_tuning.tsv', (1, 3, 2), (4, 5, 6, 7), (3, 1, 3, 1))])
def test_means_over_seeds(study, file, key, values, digits):
    groups = grouped(rows(f'{study}/{file}'), key, values)
    assert len(groups) > 8
    lines = page(f'projects/{study}/RESULTS.md')
    for name, columns in groups.items():
        cells = [str(len(columns[0])), *(
            interval(column, d) for column, d in zip(columns, digits))]
        line, = (line for line in lines
                 if line.startswith(f'| {" | ".join(name)} |')
                 and line.endswith(f'| {" | ".join(cells)} |'))


def differences(found, networks, ours, other, key, column):
    """By seed, the mean over networks of one choice minus another."""
    values = {(row[0], *(row[k] for k in key)): float(row[column])
              for row in found}
    seeds = sorted({row[0] for row in found if row[key[0]] in networks})
    return [np.mean([values[(seed, name, ours, *rest)]
                     - values[(seed, name, other, *rest)]
                     for name, *rest in networks.values()]) for seed in seeds]


@pytest.mark.parametrize('other', ['random', 'least stiff'])
@pytest.mark.parametrize('names', [RESNETS, *((n, ) for n in RESNETS)])
def test_where_steps_should_go(names, other):
    found = differences(rows('decisions/placement.tsv'),
                        {n: (n, ) for n in names}, 'stiffest', other, (1, 2),
                        4)
    assert len(found) == 4
    assert (f'| {", ".join(names)} | stiffest - {other} | 4 | '
            f'{interval(found, 4)} |') in page('projects/decisions/RESULTS.md')


@pytest.mark.parametrize('counts', [dict(zip(RESNETS, '246')),
                                    *({'digits': k} for k in '123')])
@pytest.mark.parametrize('other', ['influence', 'last', 'random', 'ablation'])
def test_scores_after_fine_tuning(counts, other):
    found = rows('pruning/fine_tuning.tsv')
    cells = [differences(found, {n: (n, k) for n, k in counts.items()},
                         'adaptive', other, (1, 2, 3), column)
             for column in (4, 6)]
    names = ', '.join(f'{n} without {k}' for n, k in counts.items())
    assert (f'| {names} | {other} | {len(cells[0])} | '
            + ' | '.join(interval(c, 3) for c in cells)
            + ' |') in page('projects/pruning/RESULTS.md')


def diverges(losses):
    means = np.convolve(losses, np.ones(20) / 20, 'valid')
    return (not np.isfinite(losses).all()
            or means[-1] > min(means.min() + 1, 2.2))


def ratios(values, left_out):
    """To the median of a quantity's own past, from the fifth value on."""
    values = np.array(values)
    if left_out:
        values[~np.isfinite(values)] = np.nan
    median = np.nanmedian if left_out else np.median
    with np.errstate(all='ignore'):
        found = [values[k] / median(values[:k])
                 for k in range(4, len(values))]
    return np.nan_to_num(found, nan=0.0 if left_out else np.inf)


@pytest.mark.filterwarnings('ignore:All-NaN')
@pytest.mark.parametrize('quantity, name, left_out, cells', [
    ('loss', 'loss', False, '| {c:.2f} | {false} | {warned} | {at} |'),
    ('gradient norm', 'gradient norm', False,
     '| {c:.2f} | {false} | {warned} | {at} |'),
    ('TNS', 'TNS', False, '| ∞ | {false} | {warned} | – |'),
    ('TNS', 'TNS', True, '| {c:.2f} | {false} | {warned} | {at} |'),
    ('largest NSI', 'largest NSI of a block', True,
     '| {c:.2f} | {false} | {warned} | {at} |')])
def test_the_alarm(quantity, name, left_out, cells):
    runs = [(int(seed), diverges(json.loads(losses)),
             ratios(json.loads(seen)[quantity], left_out))
            for _, _, seed, losses, seen in rows('decisions/alarm.tsv')]
    c = max(r.max() for seed, bad, r in runs if seed < 5 and not bad)
    held = [(bad, np.flatnonzero(r > c)) for seed, bad, r in runs if seed > 4]
    assert [bad for bad, _ in held].count(True) == 24 and len(held) == 50
    warned = [5 * (at[0] + 5) for bad, at in held if bad and len(at)]
    line = f'| {name} ' + cells.format(
        c=c, false=sum(not bad and len(at) > 0 for bad, at in held),
        warned=len(warned), at=f'{np.median(warned or [0]):.0f}')
    assert line in page('projects/decisions/RESULTS.md')


def test_architectures():
    """Spearman's ρ of each score with the test loss."""
    groups = grouped(rows('decisions/architectures.tsv'), (0, 1, 2),
                     range(4, 13))
    means = np.array([columns.mean(1) for _, columns in sorted(
        groups.items())])
    assert means.shape == (24, 9)
    scores = ('TNS, untrained', 'TNS, after one epoch',
              'mean NSI, untrained', 'mean NSI, after one epoch',
              'number of parameters', 'gradient norm, untrained',
              'loss after one epoch')
    text = page('projects/decisions/RESULTS.md')
    for k, name in enumerate(scores):
        rho = stats.spearmanr(means[:, k], means[:, 7]).statistic
        assert any(line.startswith(f'| {name} | {rho:.2f} |')
                   for line in text), name
    depth = [int(name[0]) for name in sorted(groups)]
    rho = stats.spearmanr(depth, means[:, 7]).statistic
    assert any(f'Depth alone ranks as well: ρ = {rho:.2f}.' in line
               for line in text)


def test_what_stiffness_tells():
    """Its intervals are those of the studies' pages, rounded."""
    text = '\n'.join(page('docs/what_stiffness_tells.md'))
    studies = '\n'.join(line for name in ('pruning', 'decisions')
                        for line in page(f'projects/{name}/RESULTS.md'))
    for shown, source, least in (
            (rf'({NUMBER}) \(({NUMBER}) to ({NUMBER})\)',
             rf'({NUMBER}) \(({NUMBER}), ({NUMBER})\)', 14),
            (rf'({NUMBER}) ± ({NUMBER})', rf'({NUMBER}) ± ({NUMBER})', 2)):
        known = [[*map(float, each)] for each in re.findall(source, studies)]
        found = re.findall(shown, text)
        assert len(found) >= least
        for each in found:
            assert any(all(map(near, each, k)) for k in known), each


def test_single_blocks():
    """The fall of accuracy without a block, on the page of the claims."""
    found = json.loads((ROOT / 'projects' / 'reproduction' / 'results'
                        / 'single_blocks.json').read_text())
    text = page('docs/papers_tables.md')
    for name, kept in found.items():
        rho = stats.spearmanr(kept['nsi'], kept['fall'])
        falls = ' | '.join(f'{v:.1f}' for v in kept['fall'])
        assert (f'| {name} | {falls} | {rho.statistic:.2f} '
                f'(p = {rho.pvalue:.2f}) |') in text
        first, last = kept['deviation'][0], kept['deviation'][-1]
        assert any(line.startswith(
            f'| {name} | {kept["accuracy"]:.2f}, {kept["finer"]:.2f} | '
            f'{first:.2f} to {last:.2f} |') for line in text)


def test_close_encounters():
    found = json.loads((ROOT / 'projects' / 'reproduction' / 'docs'
                        / 'close_encounters.json').read_text())
    lines = page('projects/reproduction/docs/close_encounters.md')
    for length, (name, share) in product(
            found['shares'], found['shares']['10'].items()):
        share = found['shares'][length][name]
        assert any(f'| {name} | {share["simulations"]:.1%} | '
                   f'{share["time"]:.2%} |' in line for line in lines
                   if line.startswith(f'| {length}'))
