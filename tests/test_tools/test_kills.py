"""Training that is killed goes on from a whole checkpoint.

    KILLS=20 python -m pytest tests/test_tools/test_kills.py -s

kills as often; half of the moments are random, half while a checkpoint is
being written.
"""

import os
import random
import re
import signal
import subprocess
import sys
import time

import pytest
import torch

from mmstepnet.engine.checkpoint import find_resumable
from mmstepnet.files import TEMPORARY

KILLS = int(os.environ.get('KILLS', 2))
CONFIG = 'configs/digits/resnet20_stepnet_digits.py'
MOST_SAVED = 2  # checkpoints of a job before it is killed
LONGEST_WAIT = 1.0  # seconds from there on
EPOCHS = (MOST_SAVED + 1) * KILLS + 1


def start(work_dir):
    return subprocess.Popen(
        [sys.executable, 'tools/train.py', CONFIG, '--work-dir', work_dir,
         '--resume', '--cfg-options', f'train_cfg.max_epochs={EPOCHS}',
         # The crop draws from a generator that a resumed job seeds anew.
         'train_dataloader.dataset.pipeline.1.padding=0',
         'train_dataloader.num_workers=0', 'val_dataloader.num_workers=0',
         'train_dataloader.persistent_workers=False',
         'val_dataloader.persistent_workers=False',
         'train_dataloader.dataset.indices=384',
         'default_hooks.checkpoint.interval=1',
         'default_hooks.checkpoint.max_keep_ckpts=1',
         f'train_cfg.val_interval={EPOCHS}'],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def kill(job, work_dir, chance, while_saving):
    """Kill a job; gives the epochs that it said it had begun to save."""
    wanted, saved, log = chance.randint(0, MOST_SAVED), [], []
    for line in job.stdout:
        log.append(line)
        saved += re.findall(r'Saving checkpoint at (\d+) epochs', line)
        if 'Checkpoints will be saved' in line and not wanted or (
                wanted and len(saved) == wanted):
            break
    else:
        raise AssertionError(''.join(log[-30:]))
    if while_saving:
        while job.poll() is None and not list(
                work_dir.glob(f'.*{TEMPORARY}')):
            pass
    else:
        time.sleep(chance.uniform(0, LONGEST_WAIT))
    job.send_signal(signal.SIGKILL)
    for line in job.stdout:
        saved += re.findall(r'Saving checkpoint at (\d+) epochs', line)
    job.wait()
    return [int(epoch) for epoch in saved]


@pytest.mark.parametrize('seed', [0])
def test_kills(tmp_path, seed):
    chance = random.Random(seed)
    work_dir = tmp_path / 'killed'
    begun, caught = 0, 0
    for number in range(KILLS):
        job = start(work_dir)
        epochs = kill(job, work_dir, chance, number % 2 == 1)
        begun = max([begun, *epochs])
        caught += bool(list(work_dir.glob(f'.*{TEMPORARY}')))
        files = list(work_dir.glob('*.pth'))
        for file in files:
            assert torch.load(file, weights_only=False)['state_dict'], file
        path, _ = find_resumable(str(work_dir))
        epoch = 0
        if path is not None:
            epoch = torch.load(path, weights_only=False)['meta']['epoch']
        # At most the checkpoint that was being written is lost.
        assert epoch >= begun - 1
        assert len(files) <= 2
        print(f'kill {number + 1}: epoch {begun} begun to be saved, goes on '
              f'from {epoch}, files {[f.name for f in files]}', flush=True)
    assert caught > 0, 'no kill met a file that was being written'
    outcomes = []
    for folder in (work_dir, tmp_path / 'clean'):
        job = start(folder)
        output = job.communicate()[0]
        assert job.returncode == 0, output[-3000:]
        # Nothing half-written stays, and one checkpoint is kept.
        assert not list(folder.glob(f'.*{TEMPORARY}'))
        assert len(list(folder.glob('*.pth'))) == 1
        path, _ = find_resumable(str(folder))
        outcomes.append(torch.load(path, weights_only=False)['state_dict'])
        print(re.findall(r'accuracy/top1: [\d.]+', output)[-1], flush=True)
    # The order of the images follows from seed and epoch alone.
    for name, value in outcomes[1].items():
        torch.testing.assert_close(outcomes[0][name], value)
