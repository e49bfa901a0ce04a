import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import DATASETS

from mmstepnet.stiffness import (
    MEANS,
    READINGS,
    Trajectories,
    TrajectoryRecorder,
    total_neural_stiffness,
)
from tests.checkpoints import save_model
from tests.documents import ROOT
from tests.programs import IN_PROCESS, call_tool, load_tool

CONFIG = ROOT / 'configs' / 'digits' / 'resnet20_se_digits.py'


def call(name, *args):
    """Run a tool in this process."""
    call_tool(load_tool(f'analysis_tools/{name}.py'), *args)


@pytest.fixture(scope='module')
def checkpoint(tmp_path_factory):
    path = tmp_path_factory.mktemp('checkpoints') / 'epoch_7.pth'
    save_model(path, CONFIG, epoch=7, iter=154)
    return path


@pytest.fixture(scope='module')
def measured(checkpoint, tmp_path_factory):
    """The tool's record and output for the whole validation split."""
    out = tmp_path_factory.mktemp('measured')
    lines = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr('builtins.print', lambda *a, **k: lines.append(
            ' '.join(map(str, a))))
        call('stiffness', CONFIG, checkpoint, '--split', 'val',
             '--out', out, '--device', 'cpu', '--cfg-options', *IN_PROCESS)
    return out, '\n'.join(lines)


def test_against_one_batch(measured, tmp_path):
    record = Trajectories.load(measured[0] / 'stiffness_val_epoch_7.npz')
    cfg = Config.fromfile(CONFIG)
    samples = list(DATASETS.build(cfg.val_dataloader.dataset))
    images = torch.stack([s['inputs'] for s in samples]).float()
    labels = [s['data_samples'].gt_label.item() for s in samples]
    mean, std = (torch.tensor(cfg.data_preprocessor[k]).view(3, 1, 1)
                 for k in ('mean', 'std'))
    model = save_model(tmp_path / 'the_same.pth', CONFIG)
    with torch.no_grad(), TrajectoryRecorder(model) as recorder:
        scores = model((images - mean) / std, mode='tensor')
    assert record.adaptive.shape == (360, 6)
    for name, values in recorder.record.items():
        np.testing.assert_allclose(
            getattr(record, name), values, rtol=1e-4, atol=1e-6)
    assert record.blocks == recorder.blocks
    settings = record.settings
    correct = (scores.argmax(1) == torch.tensor(labels)).double().mean()
    assert settings['metrics']['accuracy/top1'] == pytest.approx(
        100 * correct.item(), abs=1e-3)
    assert settings['model'] == 'resnet20_se_digits'
    assert (settings['epoch'], settings['iter']) == (7, 154)
    assert settings['split'] == 'val'


def test_prints_its_record(measured):
    out, text = measured
    record = Trajectories.load(out / 'stiffness_val_epoch_7.npz')
    for reading in READINGS:
        for mu in MEANS:
            tns = total_neural_stiffness(
                record.nsi(reading), record.stages, mu).mean()
            assert f'  {reading}, {mu}  {tns:.6g}\n' in text
    mean = record.adaptive[:, 2:4].astype(float).mean()
    assert f'mean NSI (adaptive) of stage 2  {mean:.6g}' in text
    assert 'backbone.layer1.0, backbone.layer2.0' in text
    assert {p.name for p in out.glob('*.png')} == {
        f'stiffness_val_epoch_7_figure_{n}.png' for n in (2, 3, 6, 9)}


def test_max_samples_are_evenly_taken(measured, checkpoint, tmp_path):
    for split, count in (('val', 5), ('train', 3)):
        call('stiffness', CONFIG, checkpoint, '--split', split,
             '--out', tmp_path, '--max-samples', count, '--device', 'cpu',
             '--blocks', 'layer2.*', '--cfg-options', *IN_PROCESS)
    whole = Trajectories.load(measured[0] / 'stiffness_val_epoch_7.npz')
    part = Trajectories.load(tmp_path / 'stiffness_val_epoch_7.npz')
    assert part.blocks == [
        'backbone.layer2.1', 'backbone.layer2.2']
    np.testing.assert_allclose(
        part.unit, whole.unit[[0, 89, 179, 269, 359], 2:4],
        rtol=1e-4)
    assert part.settings['metrics'] == {}
    part = Trajectories.load(tmp_path / 'stiffness_train_epoch_7.npz')
    assert part.settings['split'] == 'train' and len(part) == 3


@pytest.mark.parametrize('changes, options, message', [
    ('test_dataloader = test_evaluator = test_cfg = None', (),
     'no test_dataloader.*--split'),
    ('model = dict(backbone=dict(attention=None))', (),
     'does not fit the model'),
    ('', ('--blocks', 'layer9.*'), 'layer9'),
])
def test_what_cannot_be_measured(checkpoint, tmp_path, changes, options,
                                 message):
    config = tmp_path / 'config.py'
    config.write_text(f"_base_ = ['{CONFIG}']\n{changes}\n")
    with pytest.raises(ValueError, match=message):
        call('stiffness', config, checkpoint, '--out', tmp_path, '--device',
             'cpu', '--max-samples', 2, *options)
