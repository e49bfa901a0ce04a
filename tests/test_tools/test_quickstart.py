"""The quickstart's stages, with commands that take no time."""

import os
import signal
import subprocess
import sys
import time
from argparse import ArgumentParser

import pytest
from mmengine.config import Config, DictAction

from tests.documents import ROOT
from tools import quickstart
from tools.quickstart import Stage


def shell(text):
    return ['sh', '-c', text]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs the stages with these commands instead of the environment's."""
    monkeypatch.setattr(quickstart, 'OUT', tmp_path)
    sleep = time.sleep
    monkeypatch.setattr(time, 'sleep', lambda seconds: sleep(.01))

    def run(first, then, setup='exit 0'):
        bash = tmp_path / 'bin' / 'bash'
        bash.parent.mkdir(exist_ok=True)
        bash.write_text(f'#!/bin/sh\n{setup}\n')
        bash.chmod(0o755)
        monkeypatch.setattr(quickstart, 'plan', lambda: (first, then))
        monkeypatch.setattr(sys, 'argv', ['quickstart', str(tmp_path)])
        quickstart.main()

    return run


def test_plan_is_that_of_the_configs():
    first, then = quickstart.plan()
    trained = [lane for stage in (*first, *then) if stage.results
               for lane in stage.lanes]
    assert len(trained) == 4
    parser = ArgumentParser()
    parser.add_argument('--cfg-options', nargs='+', action=DictAction)
    for train, test in trained:
        cfg = Config.fromfile(ROOT / train[2])
        cfg.merge_from_dict(parser.parse_known_args(train)[0].cfg_options)
        epochs = cfg.train_cfg.max_epochs
        assert test[3].endswith(f'epoch_{epochs}.pth')
        # The rate falls to the end of what is trained, and no further.
        *_, falling = cfg.param_scheduler
        assert falling.end - falling.begin == falling.T_max
        per_epoch = (1 if falling.by_epoch else
                     1000 // cfg.train_dataloader.batch_size)
        assert falling.end == epochs * per_epoch
    # What needs the ops comes after them.
    assert all('faster_rcnn' not in str(stage) for stage in first)
    assert then[0].lanes == [[['bash', 'tools/setup_env.sh', 'ops']]]


def test_stages_run_once_beside_the_wheel(run, tmp_path, capsys):
    """The wheel is installed after it is made, and not while one trains."""
    order = tmp_path / 'order'
    result = tmp_path / 'metrics.json'
    first = [Stage('training', 1, [[
        shell(f'echo train $OMP_NUM_THREADS $OMP_WAIT_POLICY >> {order}'),
        shell(f"echo '{{\"accuracy\": 99.5}}' > {result}; touch {order}.go"),
    ]], [result], result)]
    then = [Stage('ops', 1, [[shell(f'echo install >> {order}')]])]
    setup = (f'echo $2 >> {order}; [ $2 = basis ] && exit 0\n'
             f'while ! [ -e {order}.go ]; do sleep 0.01; done\n'
             f'echo wheel done >> {order}')
    run(first, then, setup)
    told = order.read_text().splitlines()
    assert told[0] == 'basis'
    assert sorted(told[1:3]) == ['train 1 PASSIVE', 'wheel']
    assert told[3:] == ['wheel done', 'install']
    out = capsys.readouterr().out
    assert '[2/3] training: done in 0 s\n      accuracy 99.500' in out
    assert f'look at {result}' in out

    order.unlink()
    run(first, then)
    assert order.read_text() == 'install\n'
    assert '[2/2] ops: done' in capsys.readouterr().out


def test_lanes_run_beside_each_other_with_a_thread_each(run, tmp_path):
    """Each waits for what the other writes, so that one alone never ends."""
    def lane(own, other):
        return [shell(f'echo $OMP_NUM_THREADS > {tmp_path / own}'),
                shell(f'while ! [ -e {tmp_path / other} ]; do sleep 0.01; '
                      'done')]
    run([], [Stage('two', 1, [lane('a', 'b'), lane('b', 'a')])])
    assert [(tmp_path / name).read_text() for name in 'ab'] == ['1\n'] * 2


def test_failure_names_its_log(run, tmp_path):
    stage = Stage('training', 1, [[shell('echo no data; exit 3')]])
    log = tmp_path / 'logs' / '2_0.log'
    with pytest.raises(SystemExit, match=rf'no data\nfailed: sh.*{log}'):
        run([stage], [stage])
    assert log.read_text() == 'no data\n'


def test_children_end_with_it(tmp_path):
    """Also those of a child, which a shell leaves behind."""
    program = (
        'import sys; from pathlib import Path; from tools import quickstart\n'
        f'quickstart.OUT = Path({str(tmp_path)!r})\n'
        'long = quickstart.Stage("long", 1, [[["sh", "-c", "sleep 77 & echo '
        f'$! > {tmp_path}/pid; wait"]]])\n'
        'quickstart.plan = lambda: ([long], [long])\n'
        f'sys.argv[1:] = [{str(tmp_path)!r}]\n'
        'quickstart.main()')
    (tmp_path / 'bin').mkdir()
    (tmp_path / 'bin' / 'bash').symlink_to('/bin/true')
    job = subprocess.Popen([sys.executable, '-c', program], cwd=ROOT,
                           stderr=subprocess.PIPE, text=True)
    pid = tmp_path / 'pid'
    while not (pid.exists() and pid.read_text().strip()):
        assert job.poll() is None
        time.sleep(.05)
    job.send_signal(signal.SIGTERM)
    _, err = job.communicate()
    assert job.returncode == 1 and 'interrupted; the same command' in err
    with pytest.raises(ProcessLookupError):
        while True:  # until init has reaped it
            os.kill(int(pid.read_text()), 0)
            time.sleep(.05)
