"""Training that is stopped anywhere ends as training that is not.

Of its checkpoints, which are whole or not there, one always is.
"""

import errno
import os
import random
from itertools import count

import numpy as np
import pytest
import torch
import torch.nn as nn
from mmengine.evaluator import BaseMetric
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch.utils.data import Dataset

from tests.checkpoints import restored_mmengine  # noqa: F401, a fixture

pytestmark = pytest.mark.usefixtures('restored_mmengine')
NAMES = count()


class KilledError(Exception):
    """Stands for a kill: nothing in mmengine catches it or cleans up."""


class Points(Dataset):
    """Augmented by noise of every generator."""

    metainfo = {}
    read = 0

    def __len__(self):
        return 40

    def __getitem__(self, index):
        Points.read += 1
        generator = torch.Generator().manual_seed(index)
        noise = torch.rand(()) + np.random.rand() + random.random()
        return dict(inputs=torch.randn(6, generator=generator) + noise)


class Model(BaseModel):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(
            nn.Linear(6, 20),
            nn.BatchNorm1d(20),
            nn.Dropout(0.5),
            nn.Linear(20, 1),
        )

    def forward(self, inputs, mode):
        y = self.layers(torch.stack(inputs))
        return dict(loss=y.square().mean()) if mode == 'loss' else [y]


class Rising(BaseMetric):
    """Better with every epoch."""

    calls = 0

    def process(self, data_batch, data_samples):
        self.results.append(0)

    def compute_metrics(self, results):
        Rising.calls += 1
        return dict(score=Rising.calls)


class Killer(Hook):
    """Stops before an iteration, or in the midst of the save after it."""

    priority = 'LOWEST'

    def __init__(self, iteration=None, saving=False):
        self.iteration, self.saving = iteration, saving
        self.seen, self.draws, self.inputs = [], [], []

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        self.seen.append(runner.iter)
        state = torch.get_rng_state()
        self.draws += torch.rand(()).item(), np.random.rand(), random.random()
        self.inputs += data_batch['inputs']
        torch.set_rng_state(state)
        if runner.iter == self.iteration and not self.saving:
            raise KilledError

    def before_save_checkpoint(self, runner, checkpoint):
        if self.saving and runner.iter + 1 == self.iteration:
            raise KilledError


class Spoil(Hook):
    """Spoils a weight in the last epoch, behind its last loss."""

    priority = 'VERY_HIGH'

    def __init__(self, name, value):
        self.name, self.value = name, value

    def after_train_epoch(self, runner):
        if runner.epoch + 1 == runner.max_epochs:
            runner.model.state_dict()[self.name].fill_(self.value)


def train(
    work_dir, *hooks, epochs=2, batch_size=8, seed=3, checkpoint=(), **loader
):
    """Epochs of five iterations, which resume what is in the folder."""
    validation = (
        dict(
            val_dataloader=dict(
                batch_size=8,
                dataset=Points(),
                sampler=dict(type='DefaultSampler', shuffle=False),
            ),
            val_cfg=dict(),
            val_evaluator=dict(type=Rising),
        )
        if checkpoint
        else {}
    )
    Runner(
        model=Model(),
        work_dir=str(work_dir),
        train_dataloader=dict(
            batch_size=batch_size,
            dataset=Points(),
            sampler=dict(type='DefaultSampler', shuffle=True),
            **{'num_workers': 0, **loader},
        ),
        train_cfg=dict(type='mmstepnet.ResumableEpochLoop', max_epochs=epochs),
        optim_wrapper=dict(optimizer=dict(type='Adam', lr=0.01)),
        param_scheduler=dict(type='LinearLR', by_epoch=False, end=8),
        default_hooks=dict(
            checkpoint=dict(
                dict(
                    type='mmstepnet.DurableCheckpointHook',
                    interval=1,
                    max_keep_ckpts=1,
                ),
                **dict(checkpoint),
            )
        ),
        custom_hooks=list(hooks),
        randomness=dict(seed=seed),
        resume=(work_dir / 'last_checkpoint').is_file(),
        experiment_name=f'job{next(NAMES)}',
        **validation,
    ).train()


def resumable(work_dir, killer=None, **kwargs):
    """Two epochs, saved after every second and fifth iteration."""
    killer = killer or Killer()
    train(
        work_dir,
        dict(type='mmstepnet.InterimCheckpointHook', interval=2),
        killer,
        **kwargs,
    )
    return killer


def weights(work_dir):
    return torch.load(work_dir / 'epoch_2.pth', weights_only=False)[
        'state_dict'
    ]


@pytest.fixture(scope='module')
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp('whole')
    killer = resumable(folder)
    assert killer.seen == list(range(10))
    return weights(folder), killer.draws


@pytest.mark.parametrize(
    'iteration, saving, first, loader',
    [
        (1, False, 0, {}),
        (3, False, 2, {}),
        (5, False, 5, {}),
        (7, False, 6, {}),
        (8, False, 8, {}),
        # In a save, the epoch's and one between: what was saved before counts.
        (6, True, 4, {}),
        (8, True, 6, {}),
        (8, False, 8, dict(num_workers=2)),
        (8, False, 8, dict(num_workers=1, persistent_workers=True)),
    ],
)
def test_stopped_and_resumed(
    uninterrupted, tmp_path, iteration, saving, first, loader
):
    with pytest.raises(KilledError):
        resumable(tmp_path, Killer(iteration, saving), **loader)
    Points.read = 0
    resumed = resumable(tmp_path, **loader)
    # Of what was trained nothing is read again; workers count by themselves.
    assert Points.read == (0 if loader else 8 * (10 - first))
    assert resumed.seen == list(range(first, 10))
    expected, draws = uninterrupted
    assert resumed.draws == draws[3 * first :]
    torch.testing.assert_close(weights(tmp_path), expected, rtol=0, atol=0)


def test_every_sample_draws_differently(uninterrupted, tmp_path):
    """In another epoch, in which the same samples come again, and seed.

    Else dropout would leave out the same units in each iteration.
    """
    killer = resumable(tmp_path, seed=4)
    inputs = torch.stack(killer.inputs)
    clean = torch.stack(
        [
            torch.randn(6, generator=torch.Generator().manual_seed(i))
            for i in range(40)
        ]
    )
    noise = inputs[:, None] - clean  # of the right index alone it is constant
    spread, index = noise.std(2).min(1)
    assert spread.max() < 1e-6 and len(set(index.tolist())) == 40
    noise = noise.mean(2)[torch.arange(80), index]
    assert len(set(noise.tolist())) == 80
    assert len(set(uninterrupted[1] + killer.draws)) == 60


@pytest.mark.parametrize(
    'changed, text',
    [
        # Resuming brings the checkpoint's seed, but not its sampler's.
        (dict(seed=None), 'resume it with randomness.seed=3'),
        (dict(seed=4), 'resume it with randomness.seed=3'),
        (
            dict(batch_size=40),
            'iteration 2 in epoch 1, which no epochs of 1 iter',
        ),
    ],
)
def test_another_order_of_samples(tmp_path, changed, text):
    with pytest.raises(KilledError):
        resumable(tmp_path, Killer(3))
    with pytest.raises(ValueError, match=text):
        resumable(tmp_path, **changed)


BEST = dict(save_best='score', rule='greater')


def files(work_dir):
    return sorted(
        p.name
        for p in work_dir.iterdir()
        if p.suffix in ('.pth', '') and p.is_file()
    )


def test_same_files_as_the_host(tmp_path):
    found = []
    for name in ('CheckpointHook', 'mmstepnet.DurableCheckpointHook'):
        folder = tmp_path / name
        train(folder, epochs=3, checkpoint=dict(BEST, type=name))
        # Resumed, it goes on to prune what the first job kept.
        train(folder, epochs=5, checkpoint=dict(BEST, type=name))
        found.append(files(folder))
    assert found[0] == found[1]
    assert {'best_score_epoch_5.pth', 'epoch_5.pth'} < set(found[0])


@pytest.mark.parametrize('failing', range(4))
def test_a_failed_save_leaves_whole_checkpoints(
    tmp_path, monkeypatch, failing
):
    """Of every two saves of an epoch, its own and its best."""
    train(tmp_path, epochs=1, checkpoint=BEST)
    saves = []
    write = os.fsync

    def sometimes_full(descriptor):
        saves.append(1)
        if len(saves) == failing + 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(descriptor)

    monkeypatch.setattr(os, 'fsync', sometimes_full)
    with pytest.raises(OSError, match='No space left'):
        train(tmp_path, epochs=3, checkpoint=BEST)
    kept = [name for name in files(tmp_path) if name.endswith('.pth')]
    for name in kept:
        torch.load(tmp_path / name, weights_only=False)
    assert any(name.startswith('best_') for name in kept)
    last = (tmp_path / 'last_checkpoint').read_text()
    assert os.path.basename(last) in kept


@pytest.mark.parametrize(
    'name, value, saved',
    [
        ('layers.0.bias', float('nan'), 1),
        ('layers.1.running_var', float('nan'), 1),
        ('layers.1.running_var', float('inf'), 2),  # as masks are
    ],
)
def test_a_diverged_training_overwrites_nothing(tmp_path, name, value, saved):
    if saved == 1:
        with pytest.raises(FloatingPointError, match='has diverged.*NaN'):
            train(tmp_path, Spoil(name, value))
    else:
        train(tmp_path, Spoil(name, value))
    assert [path.name for path in tmp_path.glob('*.pth')] == [
        f'epoch_{saved}.pth'
    ]
