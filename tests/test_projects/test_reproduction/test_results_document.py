"""RESULTS.md: to the digit what paper.py table prints and results say."""

import re
import statistics
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from projects.reproduction import complexity, read_tables, save_result
from projects.reproduction import paper as program
from projects.reproduction.columns import read_columns
from projects.reproduction.results_document import claims_text
from projects.reproduction.warm_start_results import (
    read_warm_starts,
    warm_start_column,
    warm_start_sheet,
)
from tests.documents import ROOT
from tests.programs import call_tool

from .made_results import result, save

RESULTS = ROOT / 'projects' / 'reproduction' / 'results'
PLAIN = 'resnet20_plain_cifar10-10k'
MOON = 'ipn_metric_moon'
ACCURACIES = {
    PLAIN: (75.41, 75.72, 75.03),
    'resnet20_se_cifar10-10k': (75.94, 76.38, 75.5),
    'resnet20_stepnet_cifar10-10k': (74.87, 74.53),
    'resnet20_stepnet-60e_cifar10-10k': (80.25, ),
}
NEW = dict(
    tns={'adaptive': {'stage': 0.1, 'all': 0.3},
         'unit': {'stage': 0.2, 'all': 0.3}},
    p_hat=dict.fromkeys(('adaptive', 'unit'), {'stage': 0.05, 'all': 0.06}),
    few_stiff=dict.fromkeys(('adaptive', 'unit'), 0.7), stages=[0, 1],
    step=[0.25, 0.5], correlation=dict.fromkeys(('adaptive', 'unit'),
                                                [-0.5, None]))
STARTS = [dict(machine='m', torch='t', commit='c' * 40)]


def call_paper(*args):
    with redirect_stdout(StringIO()) as printed:
        call_tool(program, *args)
    return printed.getvalue()


@pytest.fixture(scope='module')
def paper():
    """paper.py, for which all networks are of one size."""
    size = complexity.Complexity(1_750_000, None, None, 'whole model')

    def call(*args):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(complexity, 'measure_complexity', lambda path: size)
            return call_paper(*args)
    return call


@pytest.fixture(scope='module')
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp('results')
    for place, (name, values) in enumerate(ACCURACIES.items()):
        for seed, accuracy in enumerate(values):
            epochs = 60 if '60e' in name else 20
            save(folder, result(
                seed, accuracy, epochs, (epochs - 5, accuracy + 0.11), name,
                starts=STARTS,
                # As with older results, not all of them have it.
                **(dict(seconds=4500) if place == 0 and seed < 2 else {}),
                stiffness=NEW if '60e' in name else dict(
                    tns=0.1 + 0.02 * place + seed / 99, p_hat=0.05,
                    few_stiff=0.7, stages=[0, 1],
                    step=[0.25, 0.5 + seed / 10], correlation=[-0.5, 0.5])))
    for seed, value in enumerate((86.45, 87.1)):
        save(folder, result(
            seed, value, 100, (100, value), MOON, starts=STARTS,
            curves={'loss': [(99, 0.4), (100, 0.3)]}))
    for seed, plain in enumerate((75.41, 75.72)):
        rows = [dict(attention=attention, init_step=step, before=before,
                     metric='accuracy/top1', after=[before + 1])
                for attention, step, before in (
                    (None, None, plain), ('SE', None, 12.5 + seed),
                    ('SE', 1.0, plain))]
        save_result(
            folder / 'warm_start' / PLAIN / f'seed_{seed}.json',
            dict(config=PLAIN, seed=seed, epochs=[1], lr=0.01, rows=rows,
                 starts=[dict(machine='m', torch='t', commit=c)
                         for c in ('c' * 40, 'd' * 40 + '-dirty')]))
    return folder


@pytest.fixture(scope='module')
def report(paper, results, tmp_path_factory):
    out = tmp_path_factory.mktemp('report') / 'RESULTS.md'
    printed = paper('report', '--results', results, '--out', out)
    # A host prints what it could not import.
    text, *pictures = (Path(line) for line in printed.splitlines()
                       if Path(line).is_absolute())
    assert text == out
    # TNS, violins of two columns of the suite, curves and violins of Moon.
    assert [p.name for p in pictures] == [
        'small_CIFAR-10_JPEG_10k_images_20_epochs_tns.png',
        'small_CIFAR-10_JPEG_10k_images_20_epochs_Accuracy_violin.png',
        'small_CIFAR-10_JPEG_10k_images_60_epochs_Accuracy_violin.png',
        'moon_Moon_curves.png', 'moon_Moon_Accuracy_violin.png']
    for path in pictures:
        assert path.stat().st_size > 1000
        assert f']({path.relative_to(out.parent)})' in out.read_text()
    return out.read_text()


def test_tables_are_those_of_the_results(paper, results, report):
    table = paper('table', 'small', '--markdown', '--results', results)
    assert table.strip() and table.strip() in report
    for name, values in ACCURACIES.items():
        column = '60 epochs' if '60e' in name else '20 epochs'
        part = table.split(f'{column}, Accuracy (%)**')[1].split('**')[0]
        row = {'plain': 'Plain', 'se': 'SE'}.get(name.split('_')[1],
                                                 'StepNet')
        *_, best, _, last, _, seeds = re.search(
            rf'^\| {row} \|(.*)\|$', part, re.MULTILINE)[1].split('|')
        mean, std = statistics.fmean(values), ''
        if len(values) > 1:
            std = f' ± {statistics.stdev(values):.2f}'
        assert last.strip() == f'{mean:.2f}{std}'
        assert best.strip() == f'{mean + 0.11:.2f}{std}'
        assert int(seeds) == len(values)


def test_stiffness_of_the_seeds(report):
    part = report.split('20 epochs: stiffness**')[1].split('**')[0]
    assert '| Row | NSI | TNS, μ over the stage | ∬p̂, μ over the stage |' in (
        part)
    row = re.search(r'^\| Plain \| adaptive \|(.*)\|$', part,
                    re.MULTILINE)[1]
    tns, *_, step, seeds = map(str.strip, row.split('|'))
    seed = list(range(int(seeds)))
    mean = 0.1 + statistics.fmean(seed) / 99
    assert tns == f'{mean:.4f} ± {statistics.stdev(seed) / 99:.4f}'
    step_mean = 0.375 + statistics.fmean(seed) / 20
    assert step == f'{step_mean:.2f} ± {statistics.stdev(seed) / 20:.2f}'


def test_readings_are_rows_and_means_are_columns(report):
    part = report.split('60 epochs: stiffness**')[1].split('**')[0]
    assert 'TNS, μ over the stage | TNS, μ over all blocks' in part
    for nsi, stage in (('adaptive', '0.1000'), ('unit', '0.2000')):
        assert (f'| StepNet | {nsi} | {stage} | 0.3000 | 0.0500 | 0.0600 | '
                '0.70 | 0.38 | 1 |') in part


def test_claims_and_evidence(report):
    confirmatory, explored = report.split('## Exploratory')
    assert ('- No run yet: small, CIFAR-10 JPEG, 10k images, 20 epochs '
            '(2 claims)\n') in confirmatory
    assert 'Plain | -' not in confirmatory
    explored = explored.split('\n## ')[0]
    # Two seeds of StepNet meet three of plain.
    difference = [74.87 - 75.41, 74.53 - 75.72]
    reach = 12.7062 * statistics.stdev(difference) / 2**0.5
    mean = statistics.fmean(difference)
    assert (f'| StepNet − Plain | {mean:+.2f}, 95% interval '
            f'{mean - reach:+.2f} to {mean + reach:+.2f} (2 seeds) |\n'
            ) in explored
    assert 'Kendall' in explored and 'held' not in explored
    for reading in ('adaptive NSI, μ over the stage', 'adaptive NSI |'):
        assert f'small, CIFAR-10 JPEG, 10k images, 20 epochs; {reading}' in (
            explored)
    missing = re.search('Without results yet: .*', explored)[0]
    assert 'Table 3' in missing and 'Table 4' not in missing


def test_a_plan_that_has_begun(tmp_path):
    """It waits for seeds of both rows, and says how many there are."""
    name = 'resnet20_stepnet_cifar10-10k'
    save(tmp_path, *(  # the plan begins at 3
        result(seed, 75., 20, (20, 75.), name, starts=STARTS)
        for seed in (0, 3)))
    text = claims_text(read_columns(read_tables(ROOT), tmp_path))
    assert text.count(': no verdict before all planned seeds.**') == 2
    assert '\n| StepNet − Plain | 0 of 32 seeds |\n' in text


def test_origin(report):
    origin = report.split('## Where they come from')[1]
    run = '`python -m projects.reproduction.paper run small'
    # The configs with three seeds, with two and with one.
    for count, hours, names, seeds in (
            (6, '2.5 (2)', f'{PLAIN} resnet20_se_cifar10-10k', 3),
            (2, '–', 'resnet20_stepnet_cifar10-10k', 2),
            (1, '–', 'resnet20_stepnet-60e_cifar10-10k', 1)):
        assert (f'| small | {count} | {hours} | m | t | ccccccccc | '
                f'{run} {names} --seeds {seeds}` |' in origin)
    assert ('| warm start | 2 | – | m | t | ccccccccc, ddddddddd-dirty |'
            in origin)


def test_warm_starts(results, report):
    found, = read_warm_starts(results)
    sheet = warm_start_sheet(found)
    assert sheet.to_markdown().strip() in report
    plain = '75.56 ± 0.22'
    assert sheet.rows == [
        ['none', '–', plain, '76.56 ± 0.22', '2'],
        ['SE', "paper's gate", '13.00 ± 0.71', '14.00 ± 0.71', '2'],
        ['SE', 'init_step=1', plain, '76.56 ± 0.22', '2']]


@pytest.mark.parametrize('changed', [
    dict(epochs=[5]), dict(lr=0.1), dict(rows=[])])
def test_warm_starts_of_other_settings_are_not_averaged(tmp_path, changed):
    start = dict(config=PLAIN, epochs=[1], lr=0.01,
                 rows=[dict(attention='SE', init_step=1)])
    for seed, found in enumerate((start, start | changed)):
        save_result(tmp_path / 'warm_start' / PLAIN / f'seed_{seed}.json',
                    found | dict(seed=seed))
    with pytest.raises(ValueError, match='seed_1.json: epochs, lr and rows'):
        read_warm_starts(tmp_path)


def test_a_copied_warm_start_is_no_further_seed(tmp_path):
    save_result(tmp_path / 'warm_start' / PLAIN / 'seed_1.json',
                dict(config=PLAIN, seed=0, epochs=[1], lr=0.01, rows=[]))
    with pytest.raises(ValueError, match='seed_1.json holds .* seed 0;'):
        read_warm_starts(tmp_path)


def test_no_report_of_nothing(paper, tmp_path):
    out = tmp_path / 'RESULTS.md'
    out.write_text('results of weeks')
    with pytest.raises(SystemExit):
        paper('report', '--results', tmp_path / 'typo', '--out', out)
    assert out.read_text() == 'results of weeks'


def test_a_damaged_warm_start_is_named(tmp_path):
    path = tmp_path / 'warm_start' / PLAIN / 'seed_0.json'
    path.parent.mkdir(parents=True)
    path.write_text('{"rows": ')
    with pytest.raises(ValueError, match='seed_0.json'):
        read_warm_starts(tmp_path)
    path.unlink()  # as the message says; its folder is left
    assert read_warm_starts(tmp_path) == []


def test_one_row_of_the_papers_scale_is_a_report(paper, tmp_path):
    """Nobody needs the smaller suites; the row stands in Tables 1 and 4."""
    name = 'resnet164_stepnet_cifar10'
    save(tmp_path, *(
        result(seed, 95. + seed, 164, (164, 95. + seed), name, stiffness=NEW,
               starts=STARTS) for seed in range(2)))
    out = tmp_path / 'RESULTS.md'
    paper('report', '--results', tmp_path, '--out', out)
    text = out.read_text()
    assert text.count('| 95.50 ± 0.71 | 164 | 95.50 ± 0.71 | 164 | 2 |') == 2
    assert ('Table 1, CIFAR10: **no verdict before all planned seeds** '
            '| StepNet − ResNet | no seed of both |\n') in text
    assert '**Table 1, CIFAR10: stiffness**' in text
    assert '| StepNet | unit | 0.2000 ± 0.0000 | 0.3000 ± 0.0000 |' in text
    assert 'small' not in text.split('## Tables')[1]


def test_the_committed_report_is_up_to_date():
    """RESULTS.md's claims and tables of the suite are those of results/."""
    committed = (ROOT / 'projects' / 'reproduction' / 'RESULTS.md').read_text()
    columns = read_columns(read_tables(ROOT), RESULTS)
    columns += map(warm_start_column, read_warm_starts(RESULTS))
    assert claims_text(columns) in committed
    table = call_paper('table', 'small', '--markdown', '--results', RESULTS)
    assert table.strip() in committed
