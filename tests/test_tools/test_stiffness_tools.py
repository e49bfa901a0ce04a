"""The tool that measures a checkpoint, against one batch in one pass."""

from contextlib import redirect_stdout
from io import StringIO

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import DATASETS

from mmstepnet.stiffness import Trajectories, TrajectoryRecorder
from tests.checkpoints import save_model
from tests.documents import ROOT
from tests.programs import IN_PROCESS, call_tool, load_tool

CONFIG = ROOT / 'configs' / 'digits' / 'resnet20_se_digits.py'
TOOL = load_tool('analysis_tools/stiffness.py')


def measure(*args):
    call_tool(TOOL, *args, '--device', 'cpu', '--cfg-options', *IN_PROCESS)


@pytest.fixture(scope='module')
def measured(tmp_path_factory):
    """Model, checkpoint, and the record of the whole validation split."""
    folder = tmp_path_factory.mktemp('measured')
    checkpoint = folder / 'epoch_7.pth'
    model = save_model(checkpoint, CONFIG, epoch=7, iter=154)
    with redirect_stdout(StringIO()) as printed:
        measure(CONFIG, checkpoint, '--split', 'val', '--out', folder)
    record = Trajectories.load(folder / 'stiffness_val_epoch_7.npz')
    accuracy = record.settings['metrics']['accuracy/top1']
    assert f'{record}\naccuracy/top1: {accuracy:.6g}\n' in printed.getvalue()
    assert {p.name for p in folder.glob('*.png')} == {
        f'stiffness_val_epoch_7_figure_{n}.png' for n in (2, 3, 6, 9)
    }
    return model, checkpoint, record


def test_against_one_batch(measured):
    model, _, record = measured
    cfg = Config.fromfile(CONFIG)
    samples = list(DATASETS.build(cfg.val_dataloader.dataset))
    images = torch.stack([s['inputs'] for s in samples]).float()
    labels = [s['data_samples'].gt_label.item() for s in samples]
    mean, std = (
        torch.tensor(cfg.data_preprocessor[k]).view(3, 1, 1)
        for k in ('mean', 'std')
    )
    with torch.no_grad(), TrajectoryRecorder(model) as recorder:
        scores = model((images - mean) / std, mode='tensor')
    assert record.adaptive.shape == (360, 6)
    for name, values in recorder.record.items():
        np.testing.assert_allclose(
            getattr(record, name), values, rtol=1e-4, atol=1e-6
        )
    assert record.blocks == recorder.blocks
    settings = record.settings
    correct = (scores.argmax(1) == torch.tensor(labels)).double().mean()
    assert settings['metrics']['accuracy/top1'] == pytest.approx(
        100 * correct.item(), abs=1e-3
    )
    assert settings['model'] == 'resnet20_se_digits'
    assert (settings['epoch'], settings['iter']) == (7, 154)
    assert settings['split'] == 'val'


def test_max_samples_are_evenly_taken(measured, tmp_path):
    _, checkpoint, whole = measured
    for split, count in (('val', 5), ('train', 3)):
        measure(
            CONFIG,
            checkpoint,
            '--split',
            split,
            '--out',
            tmp_path,
            '--max-samples',
            count,
            '--blocks',
            'layer2.*',
        )
    part = Trajectories.load(tmp_path / 'stiffness_val_epoch_7.npz')
    assert part.blocks == ['backbone.layer2.1', 'backbone.layer2.2']
    np.testing.assert_allclose(
        part.unit, whole.unit[[0, 89, 179, 269, 359], 2:4], rtol=1e-4
    )
    assert part.settings['metrics'] == {}
    part = Trajectories.load(tmp_path / 'stiffness_train_epoch_7.npz')
    assert part.settings['split'] == 'train' and len(part) == 3


def test_a_split_that_the_config_lacks(measured, tmp_path):
    config = tmp_path / 'config.py'
    config.write_text(
        f"_base_ = ['{CONFIG}']\n"
        'test_dataloader = test_evaluator = test_cfg = None\n'
    )
    with pytest.raises(SystemExit, match='no test_dataloader.*--split'):
        call_tool(TOOL, config, measured[1], '--out', tmp_path)
