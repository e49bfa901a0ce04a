"""warm_start.py on a plain ResNet-20 with random weights."""

import json
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import DATASETS

from projects.reproduction import warm_start
from tests.checkpoints import save_model
from tests.documents import ROOT
from tests.programs import call_tool


@pytest.fixture
def config(tmp_path):
    path = tmp_path / 'tiny.py'
    path.write_text(
        f'_base_ = {str(ROOT / "configs/digits/resnet20_plain_digits.py")!r}\n'
        'in_process = dict(num_workers=0, persistent_workers=False)\n'
        'train_dataloader = dict(dataset=dict(indices=128), **in_process)\n'
        'val_dataloader = dict(dataset=dict(indices=50), **in_process)\n'
        'custom_hooks = []\n')
    return path


def accuracy_of(model, config):
    """On the validation images."""
    data = DATASETS.build(Config.fromfile(config).val_dataloader.dataset)
    right = 0
    with torch.no_grad():
        for sample in data:
            batch = model.data_preprocessor(dict(
                inputs=[sample['inputs']],
                data_samples=[sample['data_samples']]))
            scores = model(batch['inputs'], mode='tensor')
            right += (scores.argmax()
                      == sample['data_samples'].gt_label).item()
    return 100 * right / len(data)


def test_a_warm_start_begins_where_the_plain_network_is(
        config, tmp_path, monkeypatch):
    accuracy = accuracy_of(
        save_model(tmp_path / 'plain.pth', config), config)
    monkeypatch.chdir(tmp_path)
    call_tool(warm_start, config, 'plain.pth', '--attentions', 'SE', '--lr',
              0.05, '--seed', 3, '--epochs', 1, 2)
    found = json.loads(Path('work_dirs/warm_start/warm_start.json')
                       .read_text())
    assert (found['config'], found['checkpoint']) == ('tiny', 'plain.pth')
    assert (found['seed'], found['epochs'], found['lr']) == (
        3, [1, 2], 0.05)
    rows = {(r['attention'], r['init_step']): r for r in found['rows']}
    assert list(rows) == [(None, None), ('SE', None), ('SE', 1.0)]
    assert rows[None, None]['before'] == pytest.approx(accuracy)
    assert rows['SE', 1.0]['before'] == pytest.approx(accuracy)
    for step in (None, 1.0):
        logs = Path(f'work_dirs/warm_start/SE_{step}').glob(
            '*/vis_data/scalars.json')
        log, = (text for text in map(Path.read_text, logs) if '"loss"' in text)
        records = map(json.loads, log.splitlines())
        logged = [r['accuracy/top1'] for r in records if 'accuracy/top1' in r]
        assert len(logged) == 2
        assert rows['SE', step]['after'] == pytest.approx(logged)
