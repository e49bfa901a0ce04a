"""Finished studies: the means of their pages are those of their rows.

Their programs stand at the commit that the pages name, which print the other
tables.
"""

import json
import re
from collections import defaultdict

import numpy as np
import pytest
from scipy import stats

from projects.metric_attention import no_propagation
from tests.documents import NUMBER, ROOT, near


def page(name):
    return (ROOT / name).read_text('utf-8').replace('−', '-')


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
            [float(row[k]) for k in values]
        )
    return {name: np.transpose(group) for name, group in groups.items()}


@pytest.mark.parametrize(
    'study, file, key, values, digits',
    [
        ('recipes', 'rows.tsv', (0, 1), (3, 4), (2, 4)),
        ('decisions', 'placement.tsv', (1, 2), (3, 4), (2, 4)),
        ('pruning', 'fine_tuning.tsv', (1, 3, 2), (4, 5, 6, 7), (3, 1, 3, 1)),
    ],
)
def test_means_over_seeds(study, file, key, values, digits):
    groups = grouped(rows(f'{study}/{file}'), key, values)
    assert len(groups) > 8
    lines = page(f'projects/{study}/RESULTS.md').splitlines()
    for name, columns in groups.items():
        cells = [
            str(len(columns[0])),
            *(interval(column, d) for column, d in zip(columns, digits)),
        ]
        (line,) = (
            line
            for line in lines
            if line.startswith(f'| {" | ".join(name)} |')
            and line.endswith(f'| {" | ".join(cells)} |')
        )


def test_gains_of_gates_and_head():
    """How far either raises the accuracy of the ResNets, on both pages."""
    means = {
        name: columns.mean(1)
        for name, columns in grouped(
            rows('recipes/rows.tsv'), (0, 1), (3, 4)
        ).items()
    }
    resnets = 'resnet20', 'resnet32', 'resnet44'
    shown = set()
    for part in ('gates', 'head'):
        gains = [
            means[net, part][0] - means[net, 'as it is'][0] for net in resnets
        ]
        shown.add(f'{min(gains):.1f} to {max(gains):.1f} points')
    (words,) = shown
    first, second = (
        page(name)
        for name in ('projects/recipes/RESULTS.md', 'docs/save_and_load.md')
    )
    assert first.count(words) == 2 and second.count(words) == 1
    for net in resnets:  # both together raise it more, all of it most
        gates, head, both, everything = (
            means[net, part][0]
            for part in ('gates', 'head', 'gates and head', 'all')
        )
        assert max(gates, head) < both < everything


def test_removed_blocks():
    """Lines of a score: a cell a network, without its interval."""
    cells = defaultdict(list)
    for file in ('blocks', 'thirds'):
        for (score, _), (one, other) in grouped(
            rows(f'pruning/{file}.tsv'), (0, 1), (3, 4)
        ).items():
            cells[file, score].append(
                f'{stats.spearmanr(one, other)[0]:.2f}'
                if file == 'blocks'
                else f'{one.mean():.2f}, {other.mean():.1f} %'
            )
    text = re.sub(r' \(.*?\)', '', page('projects/pruning/RESULTS.md'))
    for (_, score), found in cells.items():
        assert f'\n| {score} | {" | ".join(found)} |' in text


def test_what_stiffness_tells():
    """Its intervals are those of the studies' pages, rounded."""
    text = page('docs/what_stiffness_tells.md')
    studies = '\n'.join(
        page(f'projects/{name}/RESULTS.md')
        for name in ('pruning', 'decisions')
    )
    for shown, source, least in (
        (
            rf'({NUMBER}) \(({NUMBER}) to ({NUMBER})\)',
            rf'({NUMBER}) \(({NUMBER}), ({NUMBER})\)',
            14,
        ),
        (rf'({NUMBER}) ± ({NUMBER})', rf'({NUMBER}) ± ({NUMBER})', 2),
    ):
        known = [[*map(float, each)] for each in re.findall(source, studies)]
        found = re.findall(shown, text)
        assert len(found) >= least
        for each in found:
            assert any(all(map(near, each, k)) for k in known), each


@pytest.mark.filterwarnings('ignore::RuntimeWarning')
def test_no_propagation():
    """The verdicts against S = I are those of the stored rows."""
    found = no_propagation.comparisons()
    shown = page('projects/metric_attention/RESULTS.md')
    assert len(found) == 9
    assert all(f'| {" | ".join(row)} |' in shown for row in found)


def test_single_blocks():
    """The fall of accuracy without a block."""
    found = json.loads(
        (
            ROOT
            / 'projects'
            / 'reproduction'
            / 'results'
            / 'single_blocks.json'
        ).read_text()
    )
    lines = {
        name: cells
        for name, *cells in rows('reproduction/results/single_blocks.tsv')
    }
    for name, kept in found.items():
        rho = stats.spearmanr(kept['nsi'], kept['fall'])
        first, last = kept['deviation'][0], kept['deviation'][-1]
        assert lines[name] == [
            *(f'{value:.1f}' for value in kept['fall']),
            f'{rho.statistic:.2f} (p = {rho.pvalue:.2f})',
            f'{kept["accuracy"]:.2f}, {kept["finer"]:.2f}',
            f'{first:.2f} to {last:.2f}',
        ]
