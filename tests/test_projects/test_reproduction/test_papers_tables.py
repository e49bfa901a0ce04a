"""The page of the papers' tables says what the rows and RESULTS.md say."""

import re

import numpy as np
import pytest

from projects.reproduction.paper import PAGE
from projects.reproduction.rows import quantities, read_rows
from projects.reproduction.tables import read_tables
from tests.documents import ROOT

NUMBER = r'[+-]?\d+(?:\.\d+)?'
TEXT = (ROOT / 'docs' / 'papers_tables.md').read_text().replace('−', '-')
RESULTS = PAGE.read_text('utf-8').replace('−', '-')
ROWS = {label: read_rows(f'resnet164_{name}_cifar10-10k')
        for label, name in (('plain', 'plain'), ('SE', 'se'),
                            ('StepNet', 'stepnet'),
                            ('StepNet, `init_step=1`', 'stepnet-init1'))}
TNS = 'TNS; adaptive NSI, μ over the stage'


def near(shown, value):
    """Whether a number is another one, rounded; that has two decimals too."""
    decimals = len(shown.partition('.')[2])
    return abs(float(shown) - value) < 0.51 * 10**-decimals + 5e-5


def test_every_interval_is_one_of_the_results():
    """As it is, the other way round, or without the margin of 0.5 points."""
    known = [tuple(map(float, found)) for found in re.findall(
        f'interval ({NUMBER}) to ({NUMBER})', RESULTS)]
    known += [(-high, -low) for low, high in known]
    known += [(low - 0.5, high - 0.5) for low, high in known]
    shown = re.findall(rf'\(({NUMBER}) to ({NUMBER})\)', TEXT)
    assert len(shown) > 25
    for low, high in shown:
        assert any(near(low, a) and near(high, b) for a, b in known), (
            low, high)


def test_every_mean_is_one_of_the_results():
    """Or one of the paper's own tables."""
    found = f'({NUMBER}) ± ({NUMBER})'
    papers = str([c.paper for cells in read_tables().values() for c in cells])
    known = [tuple(map(float, pair))
             for pair in re.findall(found, RESULTS + papers)]
    shown = re.findall(found, TEXT)
    assert len(shown) > 40
    for mean, deviation in shown:
        assert any(near(mean, a) and near(deviation, b)
                   for a, b in known), (mean, deviation)


@pytest.mark.parametrize('label', ROWS)
def test_resnet_164_by_seed(label):
    losses = ', '.join(f'{dict(row["curves"]["loss"])[1]:.2f}'
                       for row in ROWS[label])
    digits = 0 if 'init' in label else 2
    tns = ', '.join(f'{quantities(row)[TNS]:.{digits}f}'
                    for row in ROWS[label])
    assert f'| {label} | {losses} | {tns} |' in TEXT


@pytest.mark.parametrize('name, least, most', [
    ('StepNet', 0.272, 0.276), ('SE', 0.475, 0.521)])
def test_gates_hardly_leave_their_start(name, least, most):
    """Mean Δt of each block, over all seeds."""
    steps = np.array([row['stiffness']['step'] for row in ROWS[name]])
    assert f'{least} to {most}' in TEXT
    assert (steps.min(), steps.max()) == pytest.approx((least, most),
                                                       abs=5e-4)


@pytest.mark.parametrize('label, quantity, rows', [
    ('mean change from block to block: plain', 'change of NSI', 'plain'),
    ('SE', 'change of NSI', 'SE'),
    ('relative to the mean NSI: plain', 'change of NSI over its mean',
     'plain'), ('SE', 'change of NSI over its mean', 'SE')])
def test_figure_3(label, quantity, rows):
    """The mean over neighbours of one stage."""
    values = []
    for row in ROWS[rows]:
        nsi, stages = row['stiffness']['nsi'], row['stiffness']['stages']
        change = np.mean([abs(b - a) for a, b, s, t in zip(
            nsi, nsi[1:], stages, stages[1:]) if s == t])
        values.append(change / (np.mean(nsi) if 'over' in quantity else 1))
        assert quantities(row)[quantity] == pytest.approx(values[-1])
    shown = ' | '.join(f'{value:.3f}' for value in values)
    assert f'| {label} | {shown} |' in TEXT


@pytest.mark.parametrize('seed', range(4))
def test_figure_9_by_seed(seed):
    kept = ROWS['SE'][seed]['stiffness']
    r = np.array(kept['correlation']['adaptive'])
    first = r[np.array(kept['stages']) == 0]
    assert (f'| {seed} | {first.min():+.2f} to {first.max():+.2f} | '
            f'{(first < 0).sum()} of 17 | {first.mean():+.3f} | '
            f'{r.mean():+.3f} |') in TEXT


def test_few_blocks_have_most_of_the_stiffness():
    """Max(ζ / μ − 1, 0) ζ of the blocks' mean NSI: the five largest."""
    shares = []
    for row in ROWS['plain']:
        nsi, stages = (np.array(row['stiffness'][k])
                       for k in ('nsi', 'stages'))
        mean = np.array([nsi[stages == s].mean() for s in stages])
        stiff = np.sort(np.clip(nsi / mean - 1, 0, None) * nsi)
        shares.append(f'{stiff[-5:].sum() / stiff.sum():.0%}')
    assert ', '.join(shares).replace('%', ' %') in TEXT
    assert min(row['stiffness']['few_stiff']['adaptive']
               for rows in ROWS.values() for row in rows) > 0.84
