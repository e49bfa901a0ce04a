"""select_blocks.py on a plain ResNet-20 with random weights."""

import re

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import DATASETS, MODELS

from mmstepnet.attentions import StepNet
from mmstepnet.figures.trajectories import spread_indices
from mmstepnet.stiffness import TrajectoryRecorder
from projects.reproduction import select_blocks
from tests.checkpoints import save_model
from tests.documents import ROOT
from tests.programs import IN_PROCESS, call_tool

CONFIGS = ROOT / 'configs' / 'digits'
PLAIN = CONFIGS / 'resnet20_plain_digits.py'


@pytest.fixture
def call(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def main(*args):
        call_tool(select_blocks, *args, '--max-samples', 16, '--device',
                  'cpu', '--cfg-options', *IN_PROCESS)

    return main


def test_stiffest_blocks_make_a_config(call, tmp_path, capsys):
    checkpoint, out = tmp_path / 'plain.pth', tmp_path / 'sub' / 'stiff.py'
    model = save_model(checkpoint, PLAIN)
    call(PLAIN, checkpoint, '--count', 2, '--out', out, '--split', 'val')
    printed = capsys.readouterr().out

    # The same images by hand, and each block's NSI in NumPy.
    cfg = Config.fromfile(out)
    dataset = DATASETS.build(cfg.val_dataloader.dataset)
    images = [dataset[i]['inputs'] for i in spread_indices(len(dataset), 16)]
    x = (torch.stack(images).float() - 77.9) / 95.9
    with TrajectoryRecorder(model.backbone) as recorder, torch.no_grad():
        model.backbone(x)
    nsi = recorder.nsi.double().numpy().reshape(16, 3, 2)
    mean = nsi.mean(2, keepdims=True)
    area = (np.maximum(nsi / mean - 1, 0) * nsi).mean(0).ravel()
    names = [f'layer{s}.{b}' for s in (1, 2, 3) for b in (1, 2)]
    expected = sorted(names[i] for i in area.argsort()[-2:])
    assert list(cfg.model.backbone.blocks) == expected
    for name, value in zip(names, area):
        assert re.search(rf'{name}[^\n]*{value:.4f}', printed), name
    assert ''.join(f'            {b!r},\n' for b in expected) in printed

    backbone = MODELS.build(cfg.model).backbone
    assert expected == [
        name for name, block in backbone.residual_blocks()
        if isinstance(block.step.attention, StepNet)
    ]


@pytest.mark.parametrize('config, args, match', [
    (CONFIGS / 'resnet20_se_digits.py', (), 'has an attention'),
    (PLAIN, ('--count', 7), '7 blocks cannot be chosen'),
])
def test_errors(call, tmp_path, config, args, match):
    checkpoint = tmp_path / 'model.pth'
    save_model(checkpoint, config)
    with pytest.raises(ValueError, match=match):
        call(config, checkpoint, *args)
