"""StiffnessHook beside an EMA, compiled steps, half precision and errors."""

import re
import sys

import numpy as np
import pytest
import torch
from mmengine.hooks import Hook

from mmstepnet.stiffness import Trajectories
from tests.test_engine.stiffness_job import (
    digits_runner,
    log_text,
    no_hooks,
    offline,
)
from tests.utils import not_on_torch_21


class Watch(Hook):
    """Sees after each iteration whether anything is left on the model."""
    priority = 'LOWEST'

    def __init__(self):
        self.clean = []

    def after_val_iter(self, runner, *args, **kwargs):
        self.clean.append(no_hooks(runner.model))


def test_training_with_ema_interval_and_resume(tmp_path):
    """The EMA weights are measured; nothing of the hook is in their copy.

    Every second validation of the run is measured, not of the process.
    """
    def job(epochs):
        return digits_runner(
            tmp_path, images=10, hook=dict(interval=2), options={
                'train_cfg.max_epochs': epochs,
                'train_cfg.val_interval': 1,
                'param_scheduler': [],
                'resume': True,
                'optim_wrapper.optimizer.lr': 0.05,
                'default_hooks.logger.interval': 1,
                'custom_hooks': [
                    dict(type='EMAHook', momentum=0.3, update_buffers=True)
                ]
            })

    job(1).train()
    runner = job(4)
    watch = Watch()
    runner.register_hook(watch)
    runner.train()
    assert watch.clean and all(watch.clean)
    ema = next(h for h in runner.hooks if type(h).__name__ == 'EMAHook')
    assert no_hooks(ema.ema_model.module) and no_hooks(runner.model)

    # The third validation was not measured, and does not repeat the second.
    validations = dict(
        re.findall(r'Epoch\(val\) \[(\d)\]\[2/2\](.*)', log_text(tmp_path)))
    assert {k: 'stiffness/tns' in v for k, v in validations.items()} == {
        '1': False, '2': True, '3': False, '4': True}
    files = sorted((tmp_path / 'stiffness').glob('*.npz'))
    assert [path.name for path in files] == [
        'stiffness_val_epoch_2.npz', 'stiffness_val_epoch_4.npz']
    record = Trajectories.load(files[1])
    assert record.settings['epoch'] == 4
    assert record.settings['iter'] == 12
    raw = offline(runner, runner.val_dataloader)
    assert not np.allclose(record.adaptive, raw.nsi, rtol=1e-3)
    runner.model.load_state_dict(ema.ema_model.module.state_dict())
    averaged = offline(runner, runner.val_dataloader)
    np.testing.assert_allclose(record.adaptive, averaged.nsi, rtol=1e-5)


def test_blocks_that_are_not_there_are_told_before_training(tmp_path):
    runner = digits_runner(tmp_path, hook=dict(blocks='layer9'))
    with pytest.raises(ValueError, match='layer9'):
        runner.train()
    assert runner.iter == 0


@pytest.mark.parametrize('how', ['not installed', 'full disk'])
def test_no_file_and_no_picture_stops_a_training(tmp_path, monkeypatch, how):
    if how == 'not installed':
        monkeypatch.setitem(sys.modules, 'mmstepnet.figures', None)
    else:
        def save(*args):
            raise OSError('No space left on device')

        monkeypatch.setattr(Trajectories, 'save', save)
    runner = digits_runner(tmp_path, images=3, hook=dict(figures=True),
                           options={'train_cfg.max_epochs': 1,
                                    'train_cfg.val_interval': 1})
    runner.train()
    assert re.search('save, draw or show .*_epoch_1.npz: (ModuleNotFound|'
                     'OSError: No space left)', log_text(tmp_path))
    assert len(list(tmp_path.rglob('stiffness_val_epoch_*.npz'))) == (
        how == 'not installed')


@not_on_torch_21("does not compile mmengine's train_step")
def test_training_with_amp_and_compile(tmp_path):
    """The compiled ``train_step`` stays; validation in half precision."""
    runner = digits_runner(
        tmp_path,
        images=10,
        options={
            'train_cfg.max_epochs': 1,
            'train_cfg.val_interval': 1,
            'val_cfg.fp16': True,
            'param_scheduler': [],
            'compile': dict(backend='eager'),
        })
    runner.train()
    assert 'train_step' in runner.model.__dict__
    record = Trajectories.load(
        tmp_path / 'stiffness/stiffness_val_epoch_1.npz')
    # On float32 norms.
    full = offline(runner, runner.val_dataloader)
    assert not np.array_equal(record.adaptive, full.nsi)
    np.testing.assert_allclose(
        record.adaptive, full.nsi, rtol=0.1, atol=0.02)
    torch._dynamo.reset()


@pytest.mark.parametrize('where', [
    'data_preprocessor', 'backbone', 'head'])
def test_after_an_exception_the_next_validation_is_right(tmp_path, where):
    runner = digits_runner(tmp_path)

    def fail(*args):
        raise ArithmeticError(where)

    handle = getattr(runner.model, where).register_forward_pre_hook(fail)
    with pytest.raises(ArithmeticError, match=where):
        runner.val()
    handle.remove()
    assert not (tmp_path / 'stiffness').exists()
    runner.val()
    assert no_hooks(runner.model)
    record = Trajectories.load(tmp_path / 'stiffness/stiffness_val.npz')
    recorder = offline(runner, runner.val_dataloader)
    np.testing.assert_allclose(record.adaptive, recorder.nsi, rtol=1e-6)
