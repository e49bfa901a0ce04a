"""Training that is stopped anywhere ends as training that is not."""

import random
from itertools import count

import numpy as np
import pytest
import torch
import torch.nn as nn
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch.utils.data import Dataset

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
            nn.Linear(6, 20), nn.Dropout(0.5), nn.Linear(20, 1))

    def forward(self, inputs, mode):
        return dict(loss=self.layers(torch.stack(inputs)).square().mean())


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


def train(work_dir, killer=None, batch_size=8, seed=3, **loader):
    """Two epochs of five iterations, saved after every second and fifth."""
    killer = killer or Killer()
    runner = Runner(
        model=Model(),
        work_dir=str(work_dir),
        train_dataloader=dict(
            batch_size=batch_size, dataset=Points(),
            sampler=dict(type='DefaultSampler', shuffle=True),
            **{'num_workers': 0, **loader}),
        train_cfg=dict(type='mmstepnet.ResumableEpochLoop', max_epochs=2),
        optim_wrapper=dict(optimizer=dict(type='Adam', lr=0.01)),
        param_scheduler=dict(type='LinearLR', by_epoch=False, end=8),
        default_hooks=dict(checkpoint=dict(
            type='CheckpointHook', interval=1, max_keep_ckpts=2)),
        custom_hooks=[
            dict(type='mmstepnet.InterimCheckpointHook', interval=2), killer
        ],
        randomness=dict(seed=seed),
        resume=(work_dir / 'last_checkpoint').is_file(),
        experiment_name=f'resumable{next(NAMES)}')
    runner.train()
    return killer


def weights(work_dir):
    return torch.load(
        work_dir / 'epoch_2.pth', weights_only=False)['state_dict']


@pytest.fixture(scope='module')
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp('whole')
    killer = train(folder)
    assert killer.seen == list(range(10))
    return weights(folder), killer.draws


@pytest.mark.parametrize('iteration, saving, first', [
    (1, False, 0),
    (3, False, 2),
    (5, False, 5),
    (7, False, 6),
    (8, False, 8),
    # In a save, the epoch's and one between: what was saved before counts.
    (6, True, 4),
    (8, True, 6),
])
def test_stopped_and_resumed(uninterrupted, tmp_path, iteration, saving,
                             first):
    with pytest.raises(KilledError):
        train(tmp_path, Killer(iteration, saving))
    Points.read = 0
    resumed = train(tmp_path)
    # Of what was trained nothing is read again.
    assert Points.read == 8 * (10 - first)
    assert resumed.seen == list(range(first, 10))
    expected, draws = uninterrupted
    assert resumed.draws == draws[3 * first:]
    found = weights(tmp_path)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)


@pytest.mark.parametrize('loader', [
    dict(num_workers=2), dict(num_workers=1, persistent_workers=True)])
def test_workers(uninterrupted, tmp_path, loader):
    """Whoever reads the samples, before the kill and after it."""
    expected, _ = uninterrupted
    with pytest.raises(KilledError):
        train(tmp_path, Killer(8), **loader)
    resumed = train(tmp_path, **loader)
    assert resumed.seen == [8, 9]
    found = weights(tmp_path)
    assert all(torch.equal(found[key], expected[key]) for key in expected)


def test_every_sample_draws_differently(tmp_path):
    """In another epoch too, in which the same samples come again."""
    inputs = torch.stack(train(tmp_path).inputs)
    clean = torch.stack([torch.randn(6, generator=torch.Generator()
                                     .manual_seed(i)) for i in range(40)])
    noise = inputs[:, None] - clean  # of the right index alone it is constant
    spread, index = noise.std(2).min(1)
    assert spread.max() < 1e-6 and len(set(index.tolist())) == 40
    noise = noise.mean(2)[torch.arange(80), index]
    assert len(set(noise.tolist())) == 80


def test_iterations_and_seeds_draw_differently(uninterrupted, tmp_path):
    """Else dropout would leave out the same units in each."""
    draws = uninterrupted[1] + train(tmp_path, seed=4).draws
    assert len(set(draws)) == 60


@pytest.mark.parametrize('seed', [None, 4])
def test_another_seed(tmp_path, seed):
    """Resuming brings the checkpoint's seed, but not its sampler's."""
    with pytest.raises(KilledError):
        train(tmp_path, Killer(3))
    with pytest.raises(ValueError, match='resume it with randomness.seed=3'):
        train(tmp_path, seed=seed)


def test_epochs_of_another_length(tmp_path):
    with pytest.raises(KilledError):
        train(tmp_path, Killer(3))
    with pytest.raises(ValueError, match='iteration 2 in epoch 1, which no '
                       'epochs of 1 iter'):
        train(tmp_path, batch_size=40)
