"""Training that is killed goes on from a whole checkpoint.

    KILLS=12 python -m pytest tests/test_tools/test_kills.py -s

kills as often; half of the moments are random, half while a checkpoint is
being written. It prints the two runs' accuracies and how far their weights
are apart: not at all, with augmentation and dropped batches.
"""

import os
import random
import re
import signal
import subprocess
import sys
import time

import torch
from mmengine.runner import find_latest_checkpoint

from mmstepnet.files import TEMPORARY

KILLS = int(os.environ.get('KILLS', 2))
CONFIG = """
_base_ = [{base!r}]
train_cfg = dict(
    _delete_=True, type='mmstepnet.ResumableEpochLoop', max_epochs={epochs},
    val_interval={epochs})
custom_hooks = [dict(type='mmstepnet.InterimCheckpointHook', interval=4)]
default_hooks = dict(checkpoint=dict(interval=1, max_keep_ckpts=1))
train_dataloader = dict(
    batch_size=16, num_workers=1, dataset=dict(indices=96))
val_dataloader = dict(num_workers=0, persistent_workers=False)
"""
BASE = 'configs/digits/resnet20_stepnet_digits.py'
MOST_SAVED = 2  # checkpoints of a job before it is killed
LONGEST_WAIT = 1.0  # seconds from there on
EPOCHS = (MOST_SAVED + 1) * KILLS + 1


def start(work_dir):
    return subprocess.Popen(
        [
            sys.executable,
            'tools/train.py',
            work_dir.parent / 'digits.py',
            '--work-dir',
            work_dir,
            '--resume',
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def kill(job, work_dir, chance, while_saving):
    """Kill a job; gives the epochs that it said it had begun to save."""
    wanted, saved, log = chance.randint(0, MOST_SAVED), [], []
    for line in job.stdout:
        log.append(line)
        saved += re.findall(r'Saving checkpoint at (\d+) epochs', line)
        if (
            'Checkpoints will be saved' in line
            and not wanted
            or (wanted and len(saved) == wanted)
        ):
            break
    else:
        raise AssertionError(''.join(log[-30:]))
    if while_saving:
        while job.poll() is None and not list(work_dir.glob(f'.*{TEMPORARY}')):
            pass
    else:
        time.sleep(chance.uniform(0, LONGEST_WAIT))
    job.send_signal(signal.SIGKILL)
    for line in job.stdout:
        saved += re.findall(r'Saving checkpoint at (\d+) epochs', line)
    job.wait()
    return [int(epoch) for epoch in saved]


def test_kills(tmp_path):
    chance = random.Random(0)
    (tmp_path / 'digits.py').write_text(
        CONFIG.format(base=os.path.abspath(BASE), epochs=EPOCHS)
    )
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
        path = find_latest_checkpoint(str(work_dir))
        epoch = 0
        if path is not None:
            epoch = torch.load(path, weights_only=False)['meta']['epoch']
        # At most the checkpoint that was being written is lost.
        assert epoch >= begun - 1
        assert len(files) <= 3  # one is interim.pth
        print(
            f'kill {number + 1}: epoch {begun} begun to be saved, goes on '
            f'from {epoch}, files {[f.name for f in files]}',
            flush=True,
        )
    assert caught > 0, 'no kill met a file that was being written'
    for path in work_dir.glob(f'.*{TEMPORARY}'):
        os.utime(path, (0, 0))  # nobody's, once it is old
    outcomes = []
    for folder in (work_dir, tmp_path / 'clean'):
        job = start(folder)
        output = job.communicate()[0]
        assert job.returncode == 0, output[-3000:]
        # Nothing half-written stays, and one checkpoint is kept.
        assert not list(folder.glob(f'.*{TEMPORARY}'))
        names = {path.name for path in folder.glob('*.pth')}
        assert names == {f'epoch_{EPOCHS}.pth', 'interim.pth'}
        outcomes.append(
            torch.load(folder / f'epoch_{EPOCHS}.pth', weights_only=False)[
                'state_dict'
            ]
        )
        print(re.findall(r'accuracy/top1: [\d.]+', output)[-1], flush=True)
    apart = max(
        (outcomes[0][name].double() - value).abs().max().item()
        for name, value in outcomes[1].items()
    )
    print(f'{KILLS} kills against none: weights {apart} apart', flush=True)
    assert apart == 0
