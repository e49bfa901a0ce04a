"""Checkpoints that are whole or not there, and of which one always is."""

import errno
import os

import pytest
import torch
import torch.nn as nn
from mmengine.evaluator import BaseMetric, Evaluator
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch.utils.data import DataLoader

from tests.checkpoints import restored_mmengine  # noqa: F401, a fixture

pytestmark = pytest.mark.usefixtures('restored_mmengine')


class Toy(BaseModel):

    def __init__(self):
        super().__init__()
        self.fc = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))

    def forward(self, x, mode='tensor'):
        y = self.fc(x)
        return dict(loss=y.square().mean()) if mode == 'loss' else [y]


class Rising(BaseMetric):
    """Better with every epoch."""

    calls = 0

    def process(self, data_batch, data_samples):
        self.results.append(0)

    def compute_metrics(self, results):
        Rising.calls += 1
        return dict(score=Rising.calls)


def runner(work_dir, epochs, hook='mmstepnet.DurableCheckpointHook',
           resume=False, **kwargs):
    data = DataLoader(torch.randn(4, 2), batch_size=2, collate_fn=lambda b:
                      dict(x=torch.stack(b)))
    return Runner(
        Toy(), str(work_dir), train_dataloader=data, val_dataloader=data,
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.1)),
        train_cfg=dict(by_epoch=True, max_epochs=epochs), val_cfg=dict(),
        val_evaluator=Evaluator([Rising()]), resume=resume,
        default_hooks=dict(checkpoint=dict(
            type=hook, interval=1, max_keep_ckpts=1, **kwargs)),
        experiment_name=f'{work_dir.name}{hook}{epochs}')


def files(work_dir):
    return sorted(p.name for p in work_dir.iterdir()
                  if p.suffix in ('.pth', '') and p.is_file())


@pytest.mark.parametrize('save_best', [None, 'score'])
def test_same_files_as_the_host(tmp_path, save_best):
    kwargs = {} if save_best is None else dict(
        save_best=save_best, rule='greater')
    found = []
    for hook in ('CheckpointHook', 'mmstepnet.DurableCheckpointHook'):
        folder = tmp_path / hook
        runner(folder, 3, hook, **kwargs).train()
        # Resumed, it goes on to prune what the first job kept.
        runner(folder, 5, hook, resume=True, **kwargs).train()
        found.append(files(folder))
    assert found[0] == found[1]
    assert 'epoch_5.pth' in found[0]
    assert sum(name.startswith('best_') for name in found[0]) == bool(
        save_best)


@pytest.mark.parametrize('failing', range(4))
def test_a_failed_save_leaves_whole_checkpoints(tmp_path, monkeypatch,
                                                failing):
    """Of every two saves of an epoch, its own and its best."""
    runner(tmp_path, 1, save_best='score', rule='greater').train()
    saves = []
    write = os.fsync

    def sometimes_full(descriptor):
        saves.append(1)
        if len(saves) == failing + 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(descriptor)

    monkeypatch.setattr(os, 'fsync', sometimes_full)
    with pytest.raises(OSError, match='No space left'):
        runner(tmp_path, 3, resume=True, save_best='score',
               rule='greater').train()
    kept = [name for name in files(tmp_path) if name.endswith('.pth')]
    for name in kept:
        torch.load(tmp_path / name, weights_only=False)
    assert any(name.startswith('best_') for name in kept)
    last = (tmp_path / 'last_checkpoint').read_text()
    assert os.path.basename(last) in kept


def test_clears_away_unfinished_files(tmp_path):
    left = tmp_path / '.epoch_7.pth.ab12.unfinished'
    other = tmp_path / '.epoch_8.pth.cd34.unfinished'  # is being written
    for path in (left, other):
        path.touch()
    os.utime(left, (0, 0))
    runner(tmp_path, 1).train()
    assert not left.exists() and other.exists()


class Spoil(Hook):
    """Spoils a weight in the last epoch, behind its last loss."""

    priority = 'VERY_HIGH'

    def __init__(self, name, value):
        self.name, self.value = name, value

    def after_train_epoch(self, runner):
        if runner.epoch + 1 == runner.max_epochs:
            runner.model.state_dict()[self.name].fill_(self.value)


@pytest.mark.parametrize('name, value, saved', [
    ('fc.0.bias', float('nan'), 1),
    ('fc.1.running_var', float('nan'), 1),
    ('fc.1.running_var', float('inf'), 2),  # as masks are
])
def test_a_diverged_training_overwrites_nothing(tmp_path, name, value, saved):
    job = runner(tmp_path, 2)
    job.register_hook(Spoil(name, value))
    if saved == 1:
        with pytest.raises(FloatingPointError, match='has diverged.*NaN'):
            job.train()
    else:
        job.train()
    assert [path.name for path in tmp_path.glob('*.pth')] == [
        f'epoch_{saved}.pth']
