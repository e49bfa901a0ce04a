"""Training over 1 and 2 gloo processes, and with one that dies."""

import os
import re
import signal
import time

import numpy as np
import pytest
import torch
from mmengine.dist import get_rank
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

from mmstepnet.stiffness import FIELDS, Trajectories
from tests.documents import ROOT
from tests.programs import call_tool, load_tool, run_program

GLOBAL_BATCH = 64
ITERATIONS = 20
IMAGES, SAMPLES = 37, 11  # over 2 processes a remainder


@HOOKS.register_module(force=True)
class DyingRankHook(Hook):
    """Kill one process in the middle of an iteration."""

    def __init__(self, rank, iteration):
        self.rank, self.iteration = rank, iteration

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if get_rank() == self.rank and runner.iter == self.iteration:
            os.kill(os.getpid(), signal.SIGKILL)


def write_config(folder, ranks, hooks=()):
    """20 iterations without augmentation, BN in eval mode."""
    path = folder / f'job{ranks}.py'
    base = ROOT / 'configs/digits/resnet20_stepnet_digits.py'
    loader = dict(num_workers=0, persistent_workers=False)
    path.write_text(f"""
_base_ = [{str(base)!r}]
custom_imports = dict(imports=['tests.test_tools.test_ranks'])
custom_hooks = [dict(
    type='mmstepnet.StiffnessHook', figures=False, max_samples={SAMPLES})]
custom_hooks += {list(hooks)!r}
model = dict(backbone=dict(norm_eval=True))
train_dataloader = dict(
    batch_size={GLOBAL_BATCH // ranks}, dataset=dict(pipeline=[
        dict(type='Resize', scale=32), dict(type='PackInputs')]),
    **{loader!r})
val_dataloader = dict(
    batch_size=8, dataset=dict(indices={IMAGES}), **{loader!r})
optim_wrapper = dict(optimizer=dict(lr=0.01))
param_scheduler = None
train_cfg = dict(by_epoch=False, max_iters={ITERATIONS},
                 val_interval={ITERATIONS}, _delete_=True)
log_processor = dict(by_epoch=False)
default_hooks = dict(checkpoint=dict(
    by_epoch=False, interval=3, max_keep_ckpts=1), logger=dict(interval=1))
""")
    return path


def launch(config, ranks, work_dir):
    return run_program(
        'bash',
        'tools/dist_train.sh',
        config,
        ranks,
        '--work-dir',
        work_dir,
        check=False,
        PYTHONPATH=str(ROOT),
    )


def test_same_weights_and_evaluation(tmp_path):
    found = {}
    for ranks in (1, 2):
        config = write_config(tmp_path, ranks)
        work_dir = tmp_path / f'work{ranks}'
        if ranks == 1:
            call_tool(load_tool('train.py'), config, '--work-dir', work_dir)
        else:
            done = launch(config, ranks, work_dir)
            assert done.returncode == 0, done.stderr[-4000:]
        (log,) = work_dir.glob('*/*.log')
        line = re.findall(r'Iter\(val\) .*accuracy/top1.*', log.read_text())[
            -1
        ]
        scalars = {
            key: float(value)
            for key, value in re.findall(r'(\S+): (-?\d[\d.e+-]*)', line)
            if 'time' not in key
        }
        weights = torch.load(
            work_dir / f'iter_{ITERATIONS}.pth', weights_only=False
        )['state_dict']
        found[ranks] = (
            weights,
            scalars,
            Trajectories.load(
                work_dir / 'stiffness' / f'stiffness_val_iter_{ITERATIONS}.npz'
            ),
        )
    (alone, evaluated, one), (shared, scalars, many) = found[1], found[2]
    assert any('tns' in key for key in evaluated), evaluated
    assert scalars == pytest.approx(evaluated, rel=1e-3)
    torch.testing.assert_close(shared, alone, rtol=1e-4, atol=1e-5)
    # In the data's order, of which neither has more.
    assert one.adaptive.shape == (SAMPLES, 6)
    for name in FIELDS:
        np.testing.assert_allclose(
            getattr(many, name), getattr(one, name), rtol=1e-3
        )
    assert many.structure == one.structure


def test_dying_rank(tmp_path):
    """The job ends within a minute and leaves whole checkpoints."""
    config = write_config(
        tmp_path, 2, [dict(type='DyingRankHook', rank=1, iteration=8)]
    )
    done = launch(config, 2, tmp_path / 'work')
    assert done.returncode != 0
    text = re.sub(r'\x1b\[[0-9;]*m', '', done.stdout + done.stderr)
    assert 'SIGKILL' in text or 'Signal 9' in text
    iterations = [
        int(n) for n in re.findall(r'Iter\(train\) \[ *(\d+)/', text)
    ]
    assert max(iterations) == 8
    (file,) = (tmp_path / 'work').glob('*.pth')
    assert file.name == 'iter_6.pth'
    assert torch.load(file, weights_only=False)['meta']['iter'] == 6
    # From the last checkpoint on, so that start-up does not count.
    assert time.time() - file.stat().st_mtime < 60
