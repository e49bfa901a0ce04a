"""Training, resuming and testing as a user does it, in processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.utils import free_port

ROOT = Path(__file__).parents[2]
CONFIG = 'configs/digits/resnet20_stepnet_digits.py'
SMALL = ('train_dataloader.dataset.indices=256',
         'val_dataloader.dataset.indices=50',
         'test_dataloader.dataset.indices=50',
         'train_dataloader.num_workers=0',
         'train_dataloader.persistent_workers=False',
         'default_hooks.checkpoint.interval=1')


def call(*command, options=()):
    env = dict(os.environ, PYTHON=sys.executable, OMP_NUM_THREADS='1',
               PORT=free_port())
    return subprocess.run(
        [*map(str, command), '--cfg-options', *SMALL, *options],
        cwd=ROOT, env=env, capture_output=True, text=True, timeout=600)


def succeed(*command, options=()):
    done = call(*command, options=options)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout + done.stderr


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """One epoch in two gloo processes, a second one in this process."""
    work_dir = tmp_path_factory.mktemp('work')
    succeed('bash', 'tools/dist_train.sh', CONFIG, 2, '--work-dir', work_dir,
            options=['train_cfg.max_epochs=1'])
    log = succeed(sys.executable, 'tools/train.py', CONFIG, '--work-dir',
                  work_dir, '--resume', options=['train_cfg.max_epochs=2'])
    assert 'resumed epoch: 1' in log
    return work_dir


def test_checkpoints_go_on(trained):
    first, second = (torch.load(trained / f'epoch_{k}.pth', weights_only=False)
                     for k in (1, 2))
    # 256 images in batches of 64, in two processes and in one.
    assert first['meta']['iter'] == 2
    assert second['meta']['iter'] == 2 + 4
    change = [(first['state_dict'][k] - v).abs().max()
              for k, v in second['state_dict'].items() if v.dim() > 1]
    assert min(change) > 0


def test_testing_writes_metrics(trained):
    out = trained / 'results' / 'metrics.json'
    succeed(sys.executable, 'tools/test.py', CONFIG, trained / 'epoch_2.pth',
            '--work-dir', trained / 'test', '--out', out)
    metrics = json.loads(out.read_text())
    assert 0 <= metrics['accuracy/top1'] <= 100


def test_the_flexible_runner_is_tested_too(trained, tmp_path):
    """It builds its model late; weights that do not fit are refused."""
    flexible = ['runner_type=FlexibleRunner',
                'strategy.type=SingleDeviceStrategy']
    succeed(sys.executable, 'tools/test.py', CONFIG, trained / 'epoch_2.pth',
            '--work-dir', tmp_path, '--out', tmp_path / 'metrics.json',
            options=flexible)
    plain = trained / 'results' / 'flexible.json'
    succeed(sys.executable, 'tools/test.py', CONFIG, trained / 'epoch_2.pth',
            '--work-dir', tmp_path, '--out', plain)
    assert (json.loads((tmp_path / 'metrics.json').read_text())
            == json.loads(plain.read_text()))
    done = call(sys.executable, 'tools/test.py', CONFIG,
                trained / 'epoch_2.pth', '--work-dir', tmp_path,
                options=[*flexible, 'model.backbone.depth=56'])
    assert done.returncode and 'does not fit the model' in done.stderr


def test_a_checkpoint_of_another_model_is_refused(trained):
    done = call(sys.executable, 'tools/test.py',
                'configs/digits/resnet20_plain_digits.py',
                trained / 'epoch_2.pth', '--work-dir', trained / 'foreign')
    assert done.returncode != 0
    assert 'does not fit the model of this config' in done.stderr


def test_bad_command_lines():
    for command in (['tools/dist_train.sh', CONFIG],
                    ['tools/dist_train.sh', CONFIG, 'two'],
                    ['tools/dist_test.sh', CONFIG, 'x.pth'],
                    ['tools/slurm_train.sh', 'partition'],
                    ['tools/dist_run.sh'],
                    ['tools/slurm_run.sh', 'tools/train.py', 'partition'],
                    *(['-c', f'{gpus} bash tools/slurm_train.sh p j {CONFIG}']
                      for gpus in ('GPUS=two', 'GPUS=0', 'CPUS_PER_TASK=-1',
                                   'GPUS=8 GPUS_PER_NODE=x'))):
        done = subprocess.run(['bash', *command], cwd=ROOT,
                              capture_output=True, text=True)
        assert done.returncode == 2
        assert 'usage' in done.stderr or 'positive integer' in done.stderr
