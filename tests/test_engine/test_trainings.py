"""The hooks in a training: EMA, intervals, errors, calibration."""

import copy
import re
import sys

import numpy as np
import pytest
import torch
from mmengine.hooks import Hook

from mmstepnet import calibrate
from mmstepnet.stiffness import Trajectories
from tests.test_engine.stiffness_job import (
    digits_runner,
    log_text,
    offline,
    recording,
    remembered,
)
from tests.utils import no_hooks


class Watch(Hook):
    """Sees the weights of the beginning, and what is left on the model."""

    priority = 'LOWEST'

    def __init__(self):
        self.clean = []

    def before_train_epoch(self, runner):
        self.state = copy.deepcopy(runner.model.state_dict())

    def after_val_iter(self, runner, *args, **kwargs):
        self.clean.append(no_hooks(runner.model))


def train(runner):
    watch = Watch()
    runner.register_hook(watch)
    runner.train()
    return watch


def test_training_with_ema_interval_and_resume(tmp_path):
    """The EMA weights are measured; nothing of the hook is in their copy.

    Every second validation of the run is measured, not of the process.
    """

    def job(epochs):
        return digits_runner(
            tmp_path,
            images=10,
            hook=dict(interval=2),
            options={
                'train_cfg.max_epochs': epochs,
                'resume': True,
                'optim_wrapper.optimizer.lr': 0.05,
                'default_hooks.logger.interval': 1,
                'custom_hooks': [
                    dict(type='EMAHook', momentum=0.3, update_buffers=True)
                ],
            },
        )

    job(1).train()
    runner = job(4)
    watch = train(runner)
    assert watch.clean and all(watch.clean)
    ema = next(h for h in runner.hooks if type(h).__name__ == 'EMAHook')
    assert no_hooks(ema.ema_model.module) and no_hooks(runner.model)

    # The third validation was not measured, and does not repeat the second.
    validations = dict(
        re.findall(r'Epoch\(val\) \[(\d)\]\[2/2\](.*)', log_text(tmp_path))
    )
    assert {k: 'stiffness/tns' in v for k, v in validations.items()} == {
        '1': False,
        '2': True,
        '3': False,
        '4': True,
    }
    assert sorted(path.name for path in tmp_path.rglob('*.npz')) == [
        'stiffness_val_epoch_2.npz',
        'stiffness_val_epoch_4.npz',
    ]
    record = recording(tmp_path, 'val_epoch_4')
    assert (record.settings['epoch'], record.settings['iter']) == (4, 12)
    raw = offline(runner, runner.val_dataloader)
    assert not np.allclose(record.adaptive, raw.nsi, rtol=1e-3)
    runner.model.load_state_dict(ema.ema_model.module.state_dict())
    averaged = offline(runner, runner.val_dataloader)
    np.testing.assert_allclose(record.adaptive, averaged.nsi, rtol=1e-5)


@pytest.mark.parametrize(
    'hook, text',
    [
        pytest.param(dict(blocks='layer9'), 'layer9', id='no such block'),
        pytest.param(dict(interval=0), 'interval', id='interval of 0'),
    ],
)
def test_what_is_wrong_is_told_before_training(tmp_path, hook, text):
    with pytest.raises(ValueError, match=text):
        digits_runner(tmp_path, hook=hook).train()
    assert not list(tmp_path.rglob('*.pth'))


@pytest.mark.parametrize(
    'how, error',
    [
        ('not installed', 'ModuleNotFoundError'),
        ('full disk', 'OSError: No space left'),
        ('lost network', 'ConnectionError: no route to host'),
    ],
)
def test_no_file_and_no_picture_stops_a_training(
    tmp_path, monkeypatch, how, error
):
    def save(*args):
        raise OSError('No space left on device')

    if how == 'not installed':
        monkeypatch.setitem(sys.modules, 'mmstepnet.figures', None)
    elif how == 'full disk':
        monkeypatch.setattr(Trajectories, 'save', save)
    runner = digits_runner(
        tmp_path,
        images=3,
        hook=dict(figures=True),
        options={
            'visualizer.vis_backends': [
                dict(
                    type=remembered.__name__,
                    error='no route to host'
                    if how == 'lost network'
                    else None,
                )
            ]
        },
    )
    if how == 'lost network':
        runner.test()  # in a training mmengine itself would fail
    else:
        runner.train()
    assert re.search(f'save, draw or show .*npz: {error}', log_text(tmp_path))
    assert len(list(tmp_path.rglob('stiffness_*.npz'))) == (how != 'full disk')


def test_calibration_before_a_training(tmp_path):
    """By all images, whose order the training still draws by itself."""
    runner = digits_runner(
        tmp_path,
        hook=dict(interval=None),
        options={
            'train_dataloader.dataset.pipeline': [
                dict(type='Resize', scale=32),
                dict(type='PackInputs'),
            ],
            'custom_hooks': [
                dict(
                    type='mmstepnet.AttentionBNCalibrationHook', num_batches=3
                )
            ],
        },
    )
    watch = train(runner)
    assert runner.iter == 3
    model = runner.model
    model.load_state_dict(watch.state)
    norms = [
        module
        for name, module in model.named_modules()
        if name.endswith('attention.bn')
    ]
    for norm in norms:
        norm.reset_running_stats()
    batch = model.data_preprocessor(
        dict(
            inputs=[
                sample['inputs'] for sample in runner.train_dataloader.dataset
            ]
        ),
        True,
    )
    assert (
        calibrate(
            model,
            [batch['inputs']],
            forward=lambda model, x: model.extract_feat(x),
        )
        == len(norms)
        == 7
    )
    wanted = {
        key: value
        for key, value in model.state_dict().items()
        if 'attention.bn.running' in key
    }
    torch.testing.assert_close(
        {key: watch.state[key] for key in wanted}, wanted, rtol=1e-3, atol=1e-6
    )
    assert not list(tmp_path.rglob('*.npz'))  # tests alone are measured
    runner.test()
    assert [p.name for p in tmp_path.rglob('*.npz')] == [
        'stiffness_test_epoch_1.npz'
    ]
