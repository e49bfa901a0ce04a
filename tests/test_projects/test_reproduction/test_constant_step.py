"""The plan of the constant step: its frozen row, and its verdicts."""

import json
import math
import re

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, init_default_scope

from mmstepnet import measure_stiffness
from projects.reproduction import moving_gates
from projects.reproduction.constant_step import ROWS, table, verdict
from tests.documents import ROOT

CONFIG = ('projects/reproduction/configs/small/'
          'resnet164_stepnet-frozen_cifar10-10k.py')


def test_frozen_steps_stay_constant():
    """Training moves every parameter but the adaptors'."""
    init_default_scope('mmpretrain')
    torch.manual_seed(0)
    cfg = Config.fromfile(ROOT / CONFIG)
    cfg.model.backbone.depth = 20
    cfg.model.head.in_channels = 64
    model = MODELS.build(cfg.model).train()
    model.init_weights()
    before = {k: p.clone() for k, p in model.named_parameters()}
    optim = build_optim_wrapper(model, cfg.optim_wrapper)
    for _ in range(2):
        optim.update_params(model(torch.rand(4, 3, 32, 32)).std())
    moved = {k for k, p in model.named_parameters()
             if not torch.equal(p, before[k])}
    assert moved == {k for k in before if '.attention.' not in k}
    steps = measure_stiffness(
        model.eval(), [torch.rand(2, 3, 32, 32)]).step_mean
    np.testing.assert_allclose(steps, 1 / (1 + math.e), rtol=1e-6)


BOTH = (2.0, 16.0, 5.0, 13.0)  # -4.8 to 22.8
WIDE, NONE, LARGE, ALL = ((-20.0, 30.0, -25.0, 40.0), (-0.5, 0.5, 0.2, -0.3),
                          (6.0, 7.0, 8.0, 6.5), (13.0, 14.0, 15.0, 14.5))


@pytest.mark.parametrize('constant, adaptive, expected', [
    (ALL, NONE, 'a constant step explains the lead'),
    (NONE, ALL, 'the adaptive step explains the lead'),
    (LARGE, LARGE, 'both have a share'),
    # One interval holds both 0 and +14.
    (ALL, WIDE, 'undecided'), (WIDE, ALL, 'undecided'),
    (ALL, BOTH, 'undecided'), (BOTH, ALL, 'undecided'),
    (NONE, NONE, 'undecided')])
def test_verdicts_of_the_plan(constant, adaptive, expected):
    assert verdict(constant, adaptive) == expected


def save(folder, accuracies, commit='a'):
    for name, values in accuracies.items():
        for seed, value in enumerate(values):
            path = folder / ROWS[name] / f'seed_{seed}.json'
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(dict(
                seed=seed, last=dict(epoch=6, metrics={
                    'accuracy/top1': value}),
                starts=[dict(machine='m', torch='2', commit=commit)])))


def test_rows_of_the_plan(tmp_path):
    """Seeds that all three rows have, of one program alone."""
    save(tmp_path, dict(plain=(30.0, 31.0, 29.0, 30.0, 99.0),
                        frozen=(44.0, 45.5, 43.0, 44.2),
                        StepNet=(44.5, 45.0, 43.5, 44.0)))
    text = table(tmp_path)
    assert 'frozen − plain: +14.18, 97.5% interval' in text
    assert text.endswith('Verdict: a constant step explains the lead.')
    save(tmp_path, dict(plain=(30.0, )), commit='b')
    with pytest.raises(ValueError, match='2 programs'):
        table(tmp_path)


@pytest.mark.parametrize('drops, word', [
    ([0.5, 2.0], 'adaptive'), ([0.4, -0.4], 'a scale'),
    ([0.5, 0.4], 'undecided'), ([-0.6, 0.1], 'undecided')])
def test_whether_gates_adapt(drops, word):
    """By what replacing them takes from the accuracy, in points."""
    assert moving_gates.adaptive(drops) == word


def test_pages():
    """They have what the commands print."""
    page = (ROOT / 'docs' / 'papers_tables.md').read_text('utf-8')
    assert f'\n{table()}\n' in page
    text = (ROOT / 'docs' / 'insert_steps.md').read_text('utf-8')
    found = re.findall(r'− frozen \| (\S+) \| (.*?) \|', moving_gates.table())
    assert len(found) == 3
    assert all(f'{points} ({ends})' in text for points, ends in found)
