"""Where a job stands, from the files that an interrupted one leaves."""

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from projects.reproduction import Cell, save_result, training_job
from projects.reproduction.job_queue import run_cells
from projects.reproduction.launch import LaunchSettings
from projects.reproduction.provenance import provenance
from projects.reproduction.results import load_result
from projects.reproduction.schedule import Schedule
from projects.reproduction.training_job import TrainingJob
from tests.documents import ROOT

CONFIG = ROOT / 'configs' / 'digits' / 'resnet20_plain_digits.py'
CELL = Cell('digits', 'Plain', 'Digits', ('Accuracy', ), {}, config=CONFIG)
EVERY_EPOCH = Schedule(12, 1, 1, True)


@pytest.fixture
def job(tmp_path):
    job = TrainingJob(CELL, 0, LaunchSettings(
        ROOT, tmp_path / 'work', tmp_path / 'results'))
    job.folder.mkdir(parents=True)
    return job


def write(job, checkpoints, validated):
    for epoch in checkpoints:
        torch.save(dict(state_dict={}), job.folder / f'epoch_{epoch}.pth')
    log = job.folder / '20260101_000000' / 'vis_data' / 'scalars.json'
    log.parent.mkdir(parents=True)
    log.write_text(''.join(
        json.dumps({'accuracy/top1': 90 + e, 'step': e}) + '\n'
        for e in validated))


def test_goes_on_from_the_newest_checkpoint(job):
    assert job.last_checkpoint(EVERY_EPOCH) is None
    write(job, (2, 10), (1, 2, 10))
    assert job.last_checkpoint(EVERY_EPOCH)[0] == 10


def test_an_epoch_whose_validation_is_lost_is_trained_again(job):
    write(job, (2, 3), (1, 2))
    assert job.last_checkpoint(EVERY_EPOCH)[0] == 2
    # Unless none was due.
    assert job.last_checkpoint(Schedule(9, 2, 1, True))[0] == 3


def test_a_checkpoint_cut_off_is_passed_over(job):
    write(job, (2, 3), (1, 2, 3))
    path = job.folder / 'epoch_3.pth'
    path.write_bytes(path.read_bytes()[:-40])
    assert job.last_checkpoint(EVERY_EPOCH)[0] == 2


def test_a_checkpoint_from_within_an_epoch(job):
    assert job.interim_checkpoint(0) is None
    write(job, (1, 2), (1, 2))
    path = job.folder / 'interim.pth'
    # From the second epoch, which is done; then from the third.
    for epoch, expected in ((1, None), (2, path)):
        torch.save(dict(state_dict={}, meta=dict(epoch=epoch)), path)
        assert job.interim_checkpoint(2) == expected
    said = []
    run_cells([CELL], [0], job.launch, dry_run=True, say=said.append)
    train, = [line for line in said if 'train.py' in line]
    assert f'--resume {path}' in train


def test_schedule_follows_the_options():
    schedule = Schedule.read(CONFIG, ['train_cfg.max_epochs=7'])
    assert schedule == Schedule(7, 5, 1, True)
    assert [e for e in range(1, 8) if schedule.validates(e)] == [5, 7]
    with pytest.raises(ValueError, match="integer, got 'abc'"):
        Schedule.read(CONFIG, ['train_cfg.max_epochs=abc'])


@pytest.mark.parametrize('name, gpus, size', [
    ('faster_rcnn_r50_stepnet_coco', 1, 16),
    ('faster_rcnn_r50_stepnet_coco', 8, None),
    ('resnet50_stepnet_imagenet', 4, 64),
    ('resnet164_stepnet_cifar10', 1, None),
    ('resnet164_stepnet_cifar10', 8, 16),
    ('resnet164_stepnet_stl10', 2, 8)])
def test_steps_have_the_papers_images_on_any_number_of_gpus(name, gpus, size):
    config, = (ROOT / 'configs').rglob(f'{name}.py')

    def command(*options):
        launch = LaunchSettings(
            ROOT, Path('w'), Path('r'), options, 'pytorch', gpus)
        cell = Cell('1', 'StepNet', 'x', ('Accuracy', ), {}, config=config)
        job = TrainingJob(cell, 0, launch)
        return ' '.join(job.train_command(job.schedule(), None))
    expected = [] if size is None else [str(size)]
    assert re.findall('batch_size=([0-9]+)', command()) == expected
    chosen = command('train_dataloader.batch_size=3')
    assert re.findall('batch_size=([0-9]+)', chosen) == ['3']
    assert 'batch_size' not in command('auto_scale_lr.enable=True')


def test_images_that_gpus_cannot_share(job):
    launch = replace(job.launch, launcher='pytorch', gpus=3)
    with pytest.raises(ValueError, match='64 images .* shared by 3 GPUs'):
        run_cells([CELL], [0], launch, dry_run=False, say=lambda line: None)


def test_result_of_other_settings_is_not_taken(job):
    save_result(job.result, dict(config=CELL.name, seed=0,
                                 cfg_options=['a=1'], last=None, best=None))
    with pytest.raises(ValueError, match='a=1'):
        job.is_done()


def test_training_of_other_settings_does_not_go_on(job, monkeypatch):
    """Stopped before it had a result; its checkpoint is not ours."""
    def stop(*args):
        write(job, [10], [5, 10])
        raise KeyboardInterrupt
    monkeypatch.setattr(training_job, 'call', stop)
    other = replace(job, launch=replace(job.launch, cfg_options=('a=1', )))
    monkeypatch.setattr(TrainingJob, 'schedule', lambda job: EVERY_EPOCH)
    with pytest.raises(KeyboardInterrupt):
        other.execute(lambda line: None)
    for start in (lambda: job.execute(lambda line: None),
                  lambda: run_cells([CELL], [0], job.launch, dry_run=True,
                                    say=lambda line: None)):
        with pytest.raises(ValueError, match=r'a=1, not from \(none\)'):
            start()


def test_checkpoints_beyond_the_schedule_are_not_taken(job):
    write(job, (4, 30), (4, 30))
    with pytest.raises(ValueError, match='epoch_30.pth is beyond the 12 ep'):
        job.last_checkpoint(EVERY_EPOCH)


def test_the_best_epoch_and_what_is_no_number(job):
    write(job, [], [5, 10, 15, 20])
    log, = job.folder.rglob('scalars.json')
    with log.open('a') as file:
        for step, value in ((5, 'Infinity'), (10, '40.0')):
            file.write(f'{{"translation/perplexity": {value}, '
                       f'"step": {step}}}\n')
        file.write('{"accuracy/top1": 112.5, "step": 10}\n')
    job.test_metrics.write_text('{"accuracy/top1": 98}')
    result = job._collect(Schedule(20, 5, 1, True))
    assert result['best'] == dict(epoch=10, metrics={
        'accuracy/top1': 112.5, 'translation/perplexity': 40.0})
    assert result['curves']['translation/perplexity'] == [(10, 40.0)]
    assert len(result['curves']['accuracy/top1']) == 4
    job.test_metrics.write_text('{"accuracy/top1": NaN}')
    with pytest.raises(ValueError, match='test_metrics.json.*NaN'):
        job._collect(Schedule(20, 5, 1, True))


def test_a_run_under_way_is_left_alone(job):
    import fcntl
    said = []
    with open(job.folder / '.lock', 'w') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        left = run_cells([CELL], [0], job.launch, dry_run=False,
                         say=said.append)
    assert left == [job] and 'another process' in said[-1]


@pytest.mark.parametrize('error', [
    RuntimeError('the loss is nan'), ValueError('the loss is nan')])
def test_a_run_that_fails_does_not_keep_the_others(job, monkeypatch, error):
    done = []

    def execute(job, say):
        if job.seed == 1:
            raise error
        done.append(job.seed)
        return True
    monkeypatch.setattr(TrainingJob, 'execute', execute)
    with pytest.raises(RuntimeError, match='1 of 4 runs failed:\n'
                       'resnet20_plain_digits, seed 1: the loss is nan'):
        run_cells([CELL], range(4), job.launch, dry_run=False,
                  say=lambda line: None)
    assert done == [0, 2, 3]


def test_commit_is_that_of_the_code(tmp_path, monkeypatch):
    def git(*args):
        subprocess.run(['git', '-C', tmp_path, '-c', 'user.name=n', '-c',
                        'user.email=e', *args], check=True)

    def commit(root=tmp_path):
        return provenance(root)['commit']
    assert commit() is None
    with monkeypatch.context() as patch:
        patch.setenv('PATH', '')
        assert commit(ROOT) is None
    code = tmp_path / 'mmstepnet' / 'code.py'
    code.parent.mkdir()
    code.write_text('1')
    git('init', '-q')
    git('add', '.')
    git('commit', '-qm', 'first')
    first = commit()
    assert re.fullmatch('[0-9a-f]{40}', first)
    (tmp_path / 'RESULTS.md').write_text('no code')
    assert commit() == first
    code.write_text('2')
    assert commit() == f'{first}-dirty'
    # A copy of the package within a repository is none of its commits.
    assert commit(code.parent) is None
    git('commit', '-qam', 'second')
    assert commit() not in (first, None)


def test_every_start_is_kept(job, monkeypatch):
    def start(commit):
        monkeypatch.setattr(training_job, 'provenance',
                            lambda root: dict(machine='m', commit=commit))
        with pytest.raises(RuntimeError):
            job.execute(lambda line: None)
    monkeypatch.setattr(training_job, 'call', lambda *args: None)
    for commit in 'aab':
        start(commit)
    write(job, [20], [20])
    job.test_metrics.write_text('{"accuracy/top1": 98}')
    assert job.execute(lambda line: None)
    result = load_result(job.result)
    assert [s['commit'] for s in result['starts']] == ['a', 'b']


def test_commands_of_the_launchers(tmp_path):
    def commands(**kwargs):
        launch = LaunchSettings(
            Path('root'), Path('w'), Path('r'), **kwargs)
        job = TrainingJob(CELL, 3, launch)
        return (job.train_command(EVERY_EPOCH, Path('c.pth')),
                job.test_command(Path('d')))
    train, test = commands(launcher='pytorch', gpus=4)
    assert train[:4] == ['bash', 'root/tools/dist_train.sh', str(CONFIG), '4']
    assert train[train.index('--resume') + 1] == 'c.pth'
    assert train[-1] == 'randomness.seed=3'
    assert test[:5] == ['bash', 'root/tools/dist_test.sh', str(CONFIG), 'd',
                        '4']
    train, test = commands(launcher='slurm', partition='gpu', gpus=2)
    assert train[:7] == [
        'env', 'GPUS=2', 'bash', 'root/tools/slurm_train.sh', 'gpu', CELL.name,
        str(CONFIG)
    ]
    assert test[3:8] == [
        'root/tools/slurm_test.sh', 'gpu', CELL.name, str(CONFIG), 'd']


@pytest.mark.parametrize('kwargs, match', [
    (dict(launcher='slurm'), '--partition'), (dict(gpus=2), 'launcher'),
    (dict(cfg_options=('randomness.seed=1', )), '--seeds')])
def test_bad_settings(kwargs, match):
    with pytest.raises(ValueError, match=match):
        LaunchSettings(ROOT, Path('w'), Path('r'), **kwargs)
