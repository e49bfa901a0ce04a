"""The page of the papers' tables and its files say what the rows say."""

import re
import shutil
from itertools import pairwise

import numpy as np
import pytest
from mmengine.config import Config
from scipy import stats

from projects.reproduction import constant_step, report
from projects.reproduction.comparisons import compare, interval
from projects.reproduction.paper import PAGE
from projects.reproduction.rows import RESULTS as ROWS_OF
from projects.reproduction.rows import quantities, read_rows
from projects.reproduction.tables import read_tables
from tests.documents import NUMBER, ROOT, near

PAGE_TEXT = (ROOT / 'docs' / 'papers_tables.md').read_text().replace('−', '-')
FILES = {
    name: [
        line.split('\t')
        for line in (ROWS_OF / f'{name}.tsv').read_text('utf-8').splitlines()
    ]
    for name in (
        'chosen_blocks',
        'figure_3',
        'figure_9',
        'logs_of_the_group',
        'resnet164_by_seed',
    )
}
TEXT = '\n'.join(
    [
        PAGE_TEXT,
        *('\t'.join(line) for lines in FILES.values() for line in lines),
    ]
)
RESULTS = PAGE.read_text('utf-8').replace('−', '-')
ROWS = {
    label: read_rows(f'resnet164_{name}_cifar10-10k')
    for label, name in (
        ('plain', 'plain'),
        ('SE', 'se'),
        ('StepNet', 'stepnet'),
        ('StepNet, `init_step=1`', 'stepnet-init1'),
    )
}
CONSTANT = {
    label: [
        row['last']['metrics']['accuracy/top1']
        for row in read_rows(config, ROWS_OF / 'constant_step')
    ]
    for label, config in constant_step.ROWS.items()
}
TNS = 'TNS; adaptive NSI, μ over the stage'


@pytest.fixture(scope='module')
def unrounded(tmp_path_factory):
    """The report with nine decimals: a rounded number is not rounded again."""
    folder = tmp_path_factory.mktemp('report')
    page = folder / 'RESULTS.md'
    shutil.copy(PAGE, page)
    mean_std = report.mean_std
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            report,
            'compare',
            lambda name, differences, decimals=2, margin=None: compare(
                name, differences, 9, margin
            ),
        )
        patch.setattr(
            report, 'mean_std', lambda values, decimals: mean_std(values, 9)
        )
        report.write_report(read_tables(), page, folder=folder)
    return '\n'.join(
        path.read_text('utf-8').replace('−', '-') for path in folder.iterdir()
    )


def test_every_interval_is_one_of_the_results(unrounded):
    """As it is, the other way round, or without the margin of 0.5 points.

    So is the difference before it, where there is one.
    """
    known = [
        tuple(map(float, found))
        for found in re.findall(
            f'({NUMBER}), 95% interval ({NUMBER}) to ({NUMBER})', unrounded
        )
    ]
    known += [(-mean, -high, -low) for mean, low, high in known]
    known += [tuple(value - 0.5 for value in found) for found in known]
    for one, other in (('frozen', 'plain'), ('StepNet', 'frozen')):
        differences = np.subtract(CONSTANT[one], CONSTANT[other])
        known.append((differences.mean(), *interval(differences, 0.025)))
    shown = re.findall(
        rf'(?:({NUMBER})(?: points)? )?'
        rf'\(({NUMBER}) to ({NUMBER})\)',
        TEXT,
    )
    assert len(shown) > 25
    for found in shown:
        assert any(
            all(
                near(number, value)
                for number, value in zip(found, values)
                if number
            )
            for values in known
        ), found


def test_every_mean_is_one_of_the_results(unrounded):
    """Or one of the paper's own tables."""
    found = f'({NUMBER}) ± ({NUMBER})'
    papers = str([c.paper for cells in read_tables().values() for c in cells])
    known = [
        tuple(map(float, pair))
        for pair in re.findall(found, unrounded + papers)
    ]
    shown = re.findall(found, TEXT)
    assert len(shown) > 5
    for mean, deviation in shown:
        assert any(near(mean, a) and near(deviation, b) for a, b in known), (
            mean,
            deviation,
        )


@pytest.mark.parametrize('label', ROWS)
def test_resnet_164_by_seed(label):
    losses = ', '.join(
        f'{dict(row["curves"]["loss"])[1]:.2f}' for row in ROWS[label]
    )
    digits = 0 if 'init' in label else 2
    tns = ', '.join(
        f'{quantities(row)[TNS]:.{digits}f}' for row in ROWS[label]
    )
    (line,) = (
        line
        for line in FILES['resnet164_by_seed']
        if line[0] == label.replace('`', '')
    )
    assert line[1:3] == [losses, tns]


@pytest.mark.parametrize(
    'name, least, most', [('StepNet', 0.272, 0.276), ('SE', 0.475, 0.521)]
)
def test_gates_hardly_leave_their_start(name, least, most):
    """Mean Δt of each block, over all seeds."""
    steps = np.array([row['stiffness']['step'] for row in ROWS[name]])
    assert f'{least} to {most}' in TEXT
    assert (steps.min(), steps.max()) == pytest.approx((least, most), abs=5e-4)


@pytest.mark.parametrize(
    'label, quantity, rows',
    [
        ('plain', 'change of NSI', 'plain'),
        ('SE', 'change of NSI', 'SE'),
        ('plain, over the mean NSI', 'change of NSI over its mean', 'plain'),
        ('SE, over the mean NSI', 'change of NSI over its mean', 'SE'),
    ],
)
def test_figure_3(label, quantity, rows):
    """The mean over neighbours of one stage."""
    values = []
    for row in ROWS[rows]:
        nsi, stages = row['stiffness']['nsi'], row['stiffness']['stages']
        change = np.mean(
            [
                abs(b - a)
                for a, b, s, t in zip(nsi, nsi[1:], stages, stages[1:])
                if s == t
            ]
        )
        values.append(change / (np.mean(nsi) if 'over' in quantity else 1))
        assert quantities(row)[quantity] == pytest.approx(values[-1])
    (line,) = (line for line in FILES['figure_3'] if line[0] == label)
    assert line[1:5] == [f'{value:.3f}' for value in values]


def test_figure_3_with_jumps():
    """Between the last block of a stage and the first of the next, too."""
    change, relative = (
        [
            [
                np.mean(
                    [abs(b - a) for a, b in pairwise(row['stiffness']['nsi'])]
                )
                / (np.mean(row['stiffness']['nsi']) if over_mean else 1)
                for row in ROWS[label]
            ]
            for label in ('SE', 'plain')
        ]
        for over_mean in (False, True)
    )
    assert np.greater(*change).all()
    shown = []
    for se, plain in (change, relative):
        found = stats.ttest_rel(se, plain)
        low, high = found.confidence_interval()
        shown.append(
            f'{np.mean(se) - np.mean(plain):+.4f} ({low:+.4f} to {high:+.4f})'
        )
    assert [
        line[-1] for line in FILES['figure_3'] if 'with the jumps' in line[0]
    ] == shown


def test_the_first_rows_of_resnet_164_are_not_compiled():
    """As their configs train today, which gives those of the control."""
    hooks = Config.fromfile(
        ROOT / 'projects/reproduction/configs/small'
        '/resnet164_plain_cifar10-10k.py'
    ).custom_hooks
    assert dict(type='mmstepnet.CompiledTrainingHook') in hooks
    rows = [row for found in ROWS.values() for row in found]
    commits = {row['starts'][0]['commit'] for row in rows}
    machines = {row['starts'][0]['machine'] for row in rows}
    assert (len(commits), len(machines)) == (4, 2)
    today, then = (
        ', '.join(f'{v:.2f}' for v in values)
        for values in (
            CONSTANT['plain'],
            [row['last']['metrics']['accuracy/top1'] for row in ROWS['plain']],
        )
    )
    words = ' '.join(TEXT.split()).replace(' and ', ', ')
    assert f'the plain network then has {today} %' in words
    assert f'in the table it has {then} %' in words


def test_logs_of_the_group():
    """Each number has repository, file and commit; what follows from it."""
    _, *lines = FILES['logs_of_the_group']
    logs = {label: (float(a), float(b)) for label, a, b, *_ in lines}
    assert len(logs) == 5
    for *_, repository, commit, path in lines:
        assert repository.startswith('zhongshsh/')
        assert re.fullmatch('[0-9a-f]{40}', commit)
        assert path.endswith('/log.txt')
    se, constant, both = (
        np.array(logs[label])
        for label in (
            'SE',
            'SE of a learned constant vector (ASR)',
            'ASR and SE',
        )
    )
    assert abs(constant - se).max() < 0.3 and 'within 0.3 points of' in TEXT
    low, high = sorted(both - se)
    assert f'the accuracy is {low:.1f} to {high:.1f} points above' in TEXT


@pytest.mark.parametrize('seed', range(4))
def test_figure_9_by_seed(seed):
    kept = ROWS['SE'][seed]['stiffness']
    r = np.array(kept['correlation']['adaptive'])
    first = r[np.array(kept['stages']) == 0]
    assert FILES['figure_9'][seed + 1] == [
        str(seed),
        f'{first.min():+.2f} to {first.max():+.2f}',
        f'{(first < 0).sum()} of 17',
        f'{first.mean():+.3f}',
        f'{r.mean():+.3f}',
    ]


def test_few_blocks_have_most_of_the_stiffness():
    """Max(ζ / μ − 1, 0) ζ of the blocks' mean NSI: the five largest."""
    shares = []
    for row in ROWS['plain']:
        nsi, stages = (
            np.array(row['stiffness'][k]) for k in ('nsi', 'stages')
        )
        mean = np.array([nsi[stages == s].mean() for s in stages])
        stiff = np.sort(np.clip(nsi / mean - 1, 0, None) * nsi)
        shares.append(f'{stiff[-5:].sum() / stiff.sum():.0%}')
    assert FILES['resnet164_by_seed'][1][3] == ', '.join(shares)
    assert (
        min(
            row['stiffness']['few_stiff']['adaptive']
            for rows in ROWS.values()
            for row in rows
        )
        > 0.84
    )
