"""Training, resuming and testing as a user does it, in processes."""

import json
import pickle
import sys

import pytest
import torch

from tests.programs import call_tool, few, load_tool, run_program

CONFIG = 'configs/digits/resnet20_stepnet_digits.py'
SMALL = few(256, 50)


def succeed(*command, options=()):
    run_program(*command, '--cfg-options', *SMALL, *options)


def call(tool, *arguments, options=()):
    """A tool in this process."""
    call_tool(load_tool(tool), *arguments, '--cfg-options', *SMALL, *options)


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """One epoch in two gloo processes, a second one in this process."""
    work_dir = tmp_path_factory.mktemp('work')
    succeed(
        'bash',
        'tools/dist_train.sh',
        CONFIG,
        2,
        '--work-dir',
        work_dir,
        options=['train_cfg.max_epochs=1'],
    )
    call(
        'train.py',
        CONFIG,
        '--work-dir',
        work_dir,
        '--resume',
        options=['train_cfg.max_epochs=2'],
    )
    assert any(
        'resumed epoch: 1' in log.read_text()
        for log in work_dir.glob('*/*.log')
    )
    assert 'DurableCheckpointHook' in next(work_dir.glob('*.py')).read_text()
    # 256 images in batches of 64, in two processes and in one.
    assert (
        torch.load(work_dir / 'epoch_2.pth', weights_only=False)['meta'][
            'iter'
        ]
        == 2 + 4
    )
    return work_dir / 'epoch_2.pth'


def test_the_flexible_runner_is_tested_too(trained, tmp_path):
    """It builds its model late; weights that do not fit are refused."""
    flexible = [
        'runner_type=FlexibleRunner',
        'strategy.type=SingleDeviceStrategy',
    ]
    usual, other = tmp_path / 'new' / 'usual.json', tmp_path / 'other.json'
    succeed(
        sys.executable,
        'tools/test.py',
        CONFIG,
        trained,
        '--work-dir',
        tmp_path,
        '--out',
        usual,
    )
    call(
        'test.py',
        CONFIG,
        trained,
        '--work-dir',
        tmp_path,
        '--out',
        other,
        options=flexible,
    )
    assert usual.read_text().endswith('}\n')
    metrics = json.loads(usual.read_text())
    assert 0 <= metrics['accuracy/top1'] <= 100
    assert json.loads(other.read_text()) == metrics
    with pytest.raises(SystemExit, match='does not fit the model'):
        call(
            'test.py',
            CONFIG,
            trained,
            '--work-dir',
            tmp_path,
            options=[*flexible, 'model.backbone.depth=56'],
        )


def test_configs_of_classes_without_a_default_scope(tmp_path):
    """As MMPretrain's and MMDetection's own configs of the new style are."""
    config = tmp_path / 'new_style.py'
    config.write_text("""
from mmengine.config import read_base  # noqa: F401
from mmengine.dataset import DefaultSampler
from mmengine.hooks import CheckpointHook
from mmpretrain.datasets import CenterCrop, PackInputs
from mmpretrain.evaluation import Accuracy
from mmpretrain.models import (ClsDataPreprocessor, GlobalAveragePooling,
                               ImageClassifier, LinearClsHead)
from torch.optim import SGD

from mmstepnet.attentions import StepNet
from mmstepnet.datasets import DigitsClassification
from mmstepnet.models import StepResNetCIFAR

default_scope = None
default_hooks = dict(checkpoint=dict(type=CheckpointHook, interval=1))
model = dict(
    type=ImageClassifier,
    data_preprocessor=dict(type=ClsDataPreprocessor, num_classes=10,
                           mean=[78.] * 3, std=[96.] * 3),
    backbone=dict(type=StepResNetCIFAR, depth=20,
                  attention=dict(type=StepNet)),
    neck=dict(type=GlobalAveragePooling),
    head=dict(type=LinearClsHead, num_classes=10, in_channels=64))
val_dataloader = dict(
    batch_size=64, num_workers=0, persistent_workers=False,
    dataset=dict(type=DigitsClassification, split='val',
                 pipeline=[dict(type=CenterCrop, crop_size=32),
                           dict(type=PackInputs)]),
    sampler=dict(type=DefaultSampler, shuffle=False))
train_dataloader = test_dataloader = val_dataloader
val_evaluator = test_evaluator = dict(type=Accuracy)
optim_wrapper = dict(optimizer=dict(type=SGD, lr=0.1))
train_cfg = dict(by_epoch=True, max_epochs=1)
val_cfg = test_cfg = dict()
""")
    work_dir = tmp_path / 'work_dir'
    call('train.py', config, '--work-dir', work_dir)
    checkpoint = work_dir / 'epoch_1.pth'
    # The run's own copy of the config has paths of the classes.
    assert 'default_collate' in (work_dir / 'new_style.py').read_text()
    call(
        'test.py',
        work_dir / 'new_style.py',
        checkpoint,
        '--work-dir',
        tmp_path / 'test',
        '--out',
        tmp_path / 'predictions.pkl',
    )
    predictions = pickle.loads((tmp_path / 'predictions.pkl').read_bytes())
    assert len(predictions) == 50 == 5 * len(predictions[0]['pred_score'])
    call(
        'analysis_tools/stiffness.py',
        config,
        checkpoint,
        '--out',
        tmp_path / 'stiffness',
    )
    assert (tmp_path / 'stiffness' / 'stiffness_test_epoch_1.npz').exists()
