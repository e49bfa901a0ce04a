"""Configs of OpenMMLab, against their own data and model."""

import numpy as np
import pytest
import torch
from PIL import Image

from mmstepnet.cli import main
from mmstepnet.stiffness import Trajectories, TrajectoryRecorder

CONFIG = """
default_scope = 'mmpretrain'
model = dict(
    type='ImageClassifier',
    backbone=dict(type='ResNet', depth=18),
    neck=dict(type='GlobalAveragePooling'),
    head=dict(type='LinearClsHead', num_classes=4, in_channels=512),
    data_preprocessor=dict(mean=[120, 110, 100], std=[60, 50, 40],
                           to_rgb=True))
test_dataloader = dict(batch_size=2, dataset=dict(type='ImageNet', pipeline=[
    dict(type='LoadImageFromFile'),
    dict(type='ResizeEdge', scale=40, edge='short'),
    dict(type='CenterCrop', crop_size=32),
    dict(type='PackInputs')]))
"""


@pytest.fixture
def given(tmp_path):
    """A config, weights and two pictures."""
    mmpretrain = pytest.importorskip('mmpretrain')
    from mmengine.logging import HistoryBuffer
    config = tmp_path / 'net.py'
    config.write_text(CONFIG)
    torch.manual_seed(0)
    model = mmpretrain.get_model(str(config))
    log = dict(log_scalars={'loss': HistoryBuffer([1.0], [1])})
    torch.save(dict(state_dict=model.state_dict(), meta={}, message_hub=log),
               tmp_path / 'epoch_3.pth')
    (tmp_path / 'pictures').mkdir()
    for k in range(2):
        Image.fromarray(np.random.default_rng(k).integers(
            0, 256, (48, 56, 3), np.uint8)).save(
                tmp_path / 'pictures' / f'{k}.png')
    return model.eval(), tmp_path


def test_a_classifier_and_its_pipeline(given, capsys):
    from mmengine.dataset import Compose
    model, folder = given
    assert main(['stiffness', f'mm:{folder}/net.py', '--weights',
                 f'{folder}/epoch_3.pth', '--images', f'{folder}/pictures',
                 '--device', 'cpu', '--out', f'{folder}/out']) == 0
    found = Trajectories.load(folder / 'out' / 'net.py.epoch_3.npz')
    pipeline = Compose(model._config.test_dataloader.dataset.pipeline)
    samples = [pipeline(dict(img_path=str(path)))
               for path in sorted((folder / 'pictures').iterdir())]
    with TrajectoryRecorder(model) as recorder, torch.no_grad():
        model.test_step(dict(
            inputs=[s['inputs'] for s in samples],
            data_samples=[s['data_samples'] for s in samples]))
    wanted = recorder.trajectories()
    assert found.blocks == wanted.blocks and len(found.blocks) == 4
    np.testing.assert_allclose(found.adaptive, wanted.adaptive, rtol=1e-5)


def test_what_is_no_classifier_is_measured_in_its_backbone(given, capsys):
    _, folder = given
    config = folder / 'net.py'
    config.write_text(config.read_text().replace(
        "'ImageClassifier'", "'MoCo', queue_len=4").replace(
            "head=dict(type='LinearClsHead', num_classes=4, in_channels=512)",
            "head=dict(type='ContrastiveHead', loss=dict("
            "type='CrossEntropyLoss'))").replace(
                'mean=', "type='SelfSupDataPreprocessor', mean="))
    assert main(['blocks', f'mm:{config}', '--size', '32']) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith('layer1.1')
    assert lines[-1] == '8 residual steps, 4 of them recorded'


def test_a_config_that_is_not_there_is_one_line(capsys):
    pytest.importorskip('mmpretrain')
    assert main(['blocks', 'mm:nowhere.py']) == 2
    assert 'nowhere.py' in capsys.readouterr().err.splitlines()[-1]
