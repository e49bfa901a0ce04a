"""Checkpoints that a training starts from, and what is said of them."""

import logging
import re
from types import SimpleNamespace

import pytest
import torch
import torch.nn as nn
from mmengine.runner import EpochBasedTrainLoop
from mmengine.runner.checkpoint import _load_checkpoint_to_model

from mmstepnet.jobs.load_check_hook import LoadCheckHook
from tests.checkpoints import (
    restored_mmengine,  # noqa: F401, a fixture
    save_model,
)
from tests.documents import ROOT
from tests.programs import call_tool, few, load_tool
from tests.test_engine.stiffness_job import log_text

CONFIG = ROOT / 'configs/digits/resnet20_stepnet_digits.py'
OTHER = 'it may be the checkpoint of another network'


def network(blocks=2, step='', classes=2, body='backbone'):
    """With a step in each block, if it has a name, and a head."""
    layers = nn.ModuleDict()
    for k in range(blocks):
        block = nn.ModuleDict(dict(conv=nn.Conv2d(1, 1, 1)))
        block['bn'] = nn.BatchNorm2d(1)
        if step:
            block[step] = nn.ModuleDict(dict(attention=nn.Linear(1, 1)))
        layers[f'layer{k}'] = block
    return nn.ModuleDict({body: layers, 'head': nn.Linear(3, classes)})


def said(model, weights, resume=False):
    """What the hook says, of what mmengine itself loads."""
    records = []
    runner = SimpleNamespace(
        model=model,
        _load_from='FILE',
        _resume=resume,
        logger=SimpleNamespace(log=lambda *record: records.append(record)),
    )
    hook, checkpoint = LoadCheckHook(), dict(state_dict=weights)
    hook.after_load_checkpoint(runner, checkpoint)
    _load_checkpoint_to_model(model, checkpoint)
    hook.before_train(runner)
    hook.before_train(runner)
    assert not model._load_state_dict_post_hooks
    return records


NEW = "all weights of 'FILE' were loaded; 2 new steps are not in it and"


@pytest.mark.parametrize(
    'model, file, level, text',
    [
        pytest.param(dict(step='step'), {}, 'INFO', NEW, id='warm start'),
        pytest.param(
            dict(step='mlp_step'), {}, 'INFO', NEW, id='of a Transformer'
        ),
        pytest.param(
            dict(step='step', classes=3),
            {},
            'INFO',
            "2 new steps are not in 'FILE' and start anew",
            id='another head',
        ),
        pytest.param(
            dict(blocks=4, step='step'),
            dict(step='step'),
            'WARNING',
            "'FILE' lacks 12 weights of the backbone, the first in "
            f'backbone.layer2.conv: {OTHER}',
            id='too shallow',
        ),
        pytest.param(
            dict(step='step'),
            dict(blocks=3, step='step'),
            'WARNING',
            "'FILE' has 9 that the backbone does not have, the first in "
            f'backbone.layer2.conv: {OTHER}',
            id='too deep',
        ),
        pytest.param(
            {},
            dict(step='step'),
            'WARNING',
            'backbone.layer0.step.attention',
            id='a stepped file for a plain network',
        ),
        pytest.param(
            {},
            dict(body='trunk'),
            'WARNING',
            f'the first in backbone.layer0.conv: {OTHER}',
            id='without the prefix',
        ),
        pytest.param({}, {}, None, '', id='the same network'),
        pytest.param(dict(classes=3), {}, None, '', id='a head alone'),
    ],
)
@pytest.mark.parametrize('prefix', ['', 'module.'])
def test_what_is_said(model, file, level, text, prefix):
    weights = {
        prefix + name: value
        for name, value in network(**file).state_dict().items()
    }
    records = said(network(**model), weights)
    assert len(records) == (level is not None)
    for found, sentence in records:
        assert logging.getLevelName(found) == level
        assert text in sentence
    assert said(network(**model), weights, resume=True) == []


@pytest.mark.usefixtures('restored_mmengine')
@pytest.mark.parametrize(
    'depth, line',
    [
        pytest.param(20, 'INFO - all weights of .*; 7 new steps', id='same'),
        pytest.param(56, 'WARNING - .*layer1.3.conv1: it may', id='deeper'),
    ],
)
def test_the_log_of_a_job_has_it(depth, line, tmp_path, monkeypatch):
    """Of the plain network's weights, as a user trains on from them."""
    monkeypatch.setattr(
        EpochBasedTrainLoop,
        'run_epoch',
        lambda loop: setattr(loop, '_epoch', loop.max_epochs),
    )
    weights = save_model(tmp_path / 'stepped.pth', CONFIG).state_dict()
    plain = {k: t for k, t in weights.items() if '.attention.' not in k}
    torch.save(plain, tmp_path / 'plain.pth')
    call_tool(
        load_tool('train.py'),
        CONFIG,
        '--work-dir',
        tmp_path,
        '--cfg-options',
        *few(64, 4),
        'train_cfg.val_interval=99',
        f'load_from={tmp_path / "plain.pth"}',
        f'model.backbone.depth={depth}',
    )
    assert re.search(line, log_text(tmp_path))
