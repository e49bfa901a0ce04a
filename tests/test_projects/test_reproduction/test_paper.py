"""paper.py as a user calls it: what is killed, in a process of its own."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from projects.reproduction import paper as program
from tests.programs import call_tool

from .made_results import KEY, result, save

SMALL = [
    'train_cfg.max_epochs=1', *(
        f'{split}_dataloader.{key}' for split in ('train', 'val', 'test')
        for key in ('num_workers=0', 'persistent_workers=False',
                    'dataset.indices=96'))
]


def command(*args):
    return [sys.executable, '-m', 'projects.reproduction.paper',
            *map(str, args)]


@pytest.fixture
def paper(capsys):
    """Calls the command in this process."""
    def paper(*args):
        code = 0
        try:
            call_tool(program, *args)
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
            if not isinstance(error.code, int):
                print(error.code, file=sys.stderr)
        printed = capsys.readouterr()
        return SimpleNamespace(
            returncode=code, stdout=printed.out, stderr=printed.err)
    return paper


def toy(tmp_path, *rows):
    return ('run', 'digits', *rows, '--seeds', 2, '--work-dir',
            tmp_path / 'work', '--results', tmp_path / 'results',
            '--cfg-options', *SMALL)


def kill_once(args, reached):
    """Start, kill the whole process group as soon as ``reached()``."""
    process = subprocess.Popen(
        command(*args), start_new_session=True, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL)
    try:
        while not reached():
            assert process.poll() is None, 'ended before it could be killed'
            time.sleep(0.05)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_killed_twice_and_started_again(tmp_path, paper):
    results, work = tmp_path / 'results', tmp_path / 'work'

    def written():
        return sorted(results.glob('*/seed_*.json'))

    # In the middle of a training, then between two runs.
    kill_once(toy(tmp_path, '+StepNet'), lambda: list(work.rglob('vis_data')))
    assert not written()
    kill_once(toy(tmp_path, '+StepNet'), lambda: len(written()) == 1)
    done = written()
    stamps = [(p, p.stat().st_mtime_ns) for p in done]
    starts = sorted(p for d in done for p in
                    (work / d.parent.name / d.stem).iterdir())

    last = paper(*toy(tmp_path, '+StepNet'))
    assert last.returncode == 0, last.stderr
    assert f'{len(done)} of 2 runs are done' in last.stdout
    assert len(written()) == 2
    assert [(p, p.stat().st_mtime_ns) for p in done] == stamps
    assert starts == sorted(p for d in done for p in
                            (work / d.parent.name / d.stem).iterdir())

    table = paper('table', 'digits', '--results', results, '--markdown')
    assert table.returncode == 0, table.stderr
    accuracy = table.stdout.split('variance**')[0]
    rows = {line.split('|')[1].strip(): line.split('|')[2:-1]
            for line in accuracy.splitlines() if line.startswith('|')}
    *_, best, _, last, epoch, seeds = (c.strip() for c in rows['StepNet'])
    assert seeds == '2' and epoch == '1'
    assert re.fullmatch(r'\d+\.\d\d ± \d+\.\d\d', last) and best == last
    assert rows['SE'][-1].strip() == '–'
    assert 'train_cfg.max_epochs=1' in table.stdout


def test_dry_run_prints_commands_and_runs_nothing(tmp_path, paper):
    out = paper(*toy(tmp_path, 'plain', '+StepNet'), '--dry-run')
    assert out.returncode == 0, out.stderr
    lines = [x for x in out.stdout.splitlines() if 'tools/train.py' in x]
    assert len(lines) == 4
    assert sum('randomness.seed=1' in x for x in lines) == 2
    assert all('train_cfg.max_epochs=1' in x for x in lines)
    assert not list(tmp_path.iterdir())


def test_seeds_from_one_to_another(tmp_path, paper):
    args = list(toy(tmp_path, 'plain'))
    place = args.index('--seeds') + 1
    for text, expected in (('3-5', (3, 4, 5)), ('2', (0, 1)), ('7-7', (7, ))):
        args[place] = text
        out = paper(*args, '--dry-run')
        assert out.returncode == 0, out.stderr
        seeds = re.findall(r'train.py .*plain.* randomness.seed=(\d+)',
                           out.stdout)
        assert tuple(map(int, seeds)) == expected


def test_errors_name_what_there_is(paper):
    table = paper('table', '9')
    assert table.returncode != 0
    assert "'9'" in table.stderr and 'fig8' in table.stderr
    row = paper('run', '1', 'SEE')
    assert row.returncode != 0
    assert "'SEE'" in row.stderr and 'StepNet' in row.stderr
    seed = paper('run', '1', '--cfg-options', 'randomness.seed=3')
    assert seed.returncode != 0 and '--seeds' in seed.stderr


def test_list_names_every_config(paper):
    out = paper('list', '--markdown').stdout
    assert '94.26 ± 0.14' in out and 'resnet164_se_cifar10' in out


def test_plot_writes_pictures(tmp_path, paper):
    save(tmp_path, *(
        result(seed, accuracy, 2, (2, accuracy), 'ipn_l2_moon', curves={
            'loss': [[1, 0.7 - seed / 9], [2, 0.3]],
            KEY: [[1, 80.0], [2, accuracy]]})
        for seed, accuracy in enumerate((90.5, 92.0, 91.0))))
    out = tmp_path / 'out'
    plot = paper('plot', 'moon', '--results', tmp_path, '--out', out)
    assert plot.returncode == 0, plot.stderr
    written = [str(path) for path in sorted(out.glob('*.png'))]
    assert sorted(plot.stdout.splitlines()) == written
    assert [Path(p).name for p in written] == [
        'moon_Moon_Accuracy_violin.png', 'moon_Moon_curves.png']
    nothing = paper('plot', 'mnist', '--results', tmp_path, '--out', out)
    assert nothing.returncode != 0
    assert 'projects.reproduction.paper run mnist' in nothing.stderr
