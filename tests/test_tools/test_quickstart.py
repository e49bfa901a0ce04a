"""The quickstart's stages, with commands that take no time."""

import re
import sys
from argparse import ArgumentParser

import pytest
from mmengine.config import Config, DictAction

from tests.documents import ROOT
from tools import quickstart
from tools.quickstart import Stage


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs the stages with these commands instead of the environment's."""
    monkeypatch.setattr(quickstart, 'OUT', tmp_path)
    bash = tmp_path / 'bin' / 'bash'
    bash.parent.mkdir()
    bash.write_text(
        f'#!/bin/sh\n[ $2 = basis ] || sleep 1\necho $2 >> {tmp_path}/order\n'
    )
    bash.chmod(0o755)
    monkeypatch.setattr(sys, 'argv', ['quickstart', str(tmp_path)])

    def run(*stages):
        monkeypatch.setattr(quickstart, 'plan', lambda: stages)
        quickstart.main()

    return run


def test_plan_is_that_of_the_configs():
    stages = quickstart.plan()
    trained = [
        stage.command for stage in stages if 'tools/train.py' in stage.command
    ]
    assert len(trained) == 4
    parser = ArgumentParser()
    parser.add_argument('--cfg-options', nargs='+', action=DictAction)
    for command in trained:
        cfg = Config.fromfile(ROOT / command[2])
        cfg.merge_from_dict(parser.parse_known_args(command)[0].cfg_options)
        # The rate falls to the end of what is trained, and no further.
        *_, falling = cfg.param_scheduler
        assert falling.end - falling.begin == falling.T_max
        per_epoch = (
            1 if falling.by_epoch else 1000 // cfg.train_dataloader.batch_size
        )
        assert falling.end == cfg.train_cfg.max_epochs * per_epoch
    # What needs the ops comes after them.
    assert all(
        'faster_rcnn' not in str(stage)
        for stage in stages[: stages.index(quickstart.OPS)]
    )


def test_the_first_picture_comes_first():
    """It needs the environment alone."""
    first = quickstart.plan()[0]
    assert first is quickstart.FIRST
    assert all((ROOT / path).is_file() for path in first.command[1:4])


def test_every_title_says_how_long():
    stages = quickstart.BASIS, *quickstart.plan()
    assert all(
        re.search(r'\d+ to \d+ (s|min)$', stage.title) for stage in stages
    ), stages


def test_a_second_call_waits(tmp_path, monkeypatch):
    """And goes on when the first one ends, here as soon as it says so."""
    first, said = quickstart.hold(tmp_path / 'new/lock', 'writes'), []

    def say(text, **options):
        said.append(text)
        first.close()

    monkeypatch.setattr(quickstart, 'print', say, raising=False)
    with quickstart.hold(tmp_path / 'new/lock', 'writes'):
        assert said == ['waiting for another call, which writes']


def test_stages_run_once_beside_the_wheel(run, tmp_path, capsys):
    result, order = tmp_path / 'metrics.json', tmp_path / 'order'
    script = (
        f'echo train $OMP_WAIT_POLICY >> {order}; '
        f'echo \'{{"accuracy": 99}}\' > {result}'
    )
    training = Stage('training', ['sh', '-c', script], result)
    run(training, quickstart.OPS)
    assert order.read_text().split('\n') == [
        'basis',
        'train PASSIVE',
        'wheel',
        'ops',
        '',
    ]
    out = capsys.readouterr().out
    assert '[1/2] training\n' in out and "{'accuracy': 99}" in out
    order.unlink()
    run(training, quickstart.OPS)
    assert 'train' not in order.read_text()


def test_a_failure_names_its_log(run, tmp_path):
    with pytest.raises(
        SystemExit,
        match=r'no data\nfailed; the whole output '
        f'is in {tmp_path}/logs/1_of_1.log',
    ):
        run(Stage('training', ['sh', '-c', 'echo no data; exit 3']))
