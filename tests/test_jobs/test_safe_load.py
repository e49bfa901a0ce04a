import os
import pickle

import numpy as np
import pytest
import torch
from mmengine.logging import HistoryBuffer
from mmengine.optim.scheduler.param_scheduler import (
    OneCycleParamScheduler as OneCycleLR,
)
from mmengine.registry import PARAM_SCHEDULERS
from safetensors.torch import save_file

from mmstepnet.jobs import safe_load
from mmstepnet.jobs.safe_load import UnsafeCheckpointError, load_file
from tests.checkpoints import Payload, mmengine_content
from tests.documents import ROOT
from tests.programs import call_tool, load_tool

CONFIG = str(ROOT / 'configs/digits/resnet20_stepnet_digits.py')


class Foreign:
    pass


@pytest.fixture(params=['allowlist', 'unpickler'])
def reader(request, monkeypatch):
    """Both ways of reading, the second one that of old PyTorch versions."""
    if request.param == 'allowlist' and not safe_load.HAS_ALLOWLIST:
        pytest.skip('this PyTorch has no allowlist')
    monkeypatch.setattr(
        safe_load, 'HAS_ALLOWLIST', request.param == 'allowlist')


@pytest.mark.parametrize('zipped', [True, False])
def test_reads_what_mmengine_stores(tmp_path, reader, zipped):
    content = mmengine_content()
    path = str(tmp_path / 'whole.pth')
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    got = load_file(path)
    assert got['meta'] == content['meta']
    for name, value in content['state_dict'].items():
        assert torch.equal(got['state_dict'][name], value)
        assert got['state_dict'][name].dtype == value.dtype
    scalars = got['message_hub']['log_scalars']
    assert scalars['train/loss'].current() == 0.5
    assert isinstance(scalars['train/lr'], HistoryBuffer)
    info = got['message_hub']['runtime_info']
    assert info['epoch'] == 3
    np.testing.assert_array_equal(
        info['palette'], np.arange(6).reshape(2, 3))


SCHEDULES = {
    'CosineAnnealingLR': dict(T_max=9),
    'CosineRestartLR': dict(
        periods=[4, 5], restart_weights=[1, 1], eta_min=0),
    'LinearMomentum': dict(start_factor=0.1),
    'MultiStepLR': dict(milestones=[2, 2, 5]),
    'OneCycleLR': dict(eta_max=1, total_steps=9),
    'OneCycleLR ': dict(eta_max=1, total_steps=9, anneal_strategy='linear'),
    'PolyLR': dict(),
    'ReduceOnPlateauLR': dict(monitor='loss'),
}


@pytest.mark.parametrize('zipped', [True, False])
@pytest.mark.parametrize('name', SCHEDULES)
def test_schedules_go_on(tmp_path, reader, name, zipped):
    """Their states hold counters and functions, which a job resumes from."""
    def build():
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.1,
                                    momentum=0.9)
        return optimizer, PARAM_SCHEDULERS.build(
            dict(type=name.strip(), **SCHEDULES[name]),
            default_args=dict(optimizer=optimizer))

    def step(optimizer, schedule):
        optimizer.step()
        schedule.step(*([dict(loss=1.)] if 'Plateau' in name else []))
        group, = optimizer.param_groups
        return group['lr'], group['momentum']
    first, second = build(), build()
    for _ in range(3):
        step(*first)
    path = str(tmp_path / 'schedule.pth')
    torch.save(dict(optimizer=first[0].state_dict(),
                    param_schedulers=[first[1].state_dict()]), path,
               _use_new_zipfile_serialization=zipped)
    found = load_file(path)
    second[0].load_state_dict(found['optimizer'])
    second[1].load_state_dict(found['param_schedulers'][0])
    assert [step(*second) for _ in range(5)] == [
        step(*first) for _ in range(5)]


@pytest.mark.parametrize('zipped', [True, False])
@pytest.mark.parametrize('payload,name', [
    (lambda path: Payload(os.system, f'touch {path}'), 'system'),
    (lambda path: Payload(open, str(path), 'w'), 'open'),
    (lambda path: Payload(eval, f"open({str(path)!r}, 'w')"), 'eval'),
    (lambda path: Payload(getattr, 'text', 'join'), 'getattr'),
    (lambda path: Payload(getattr, HistoryBuffer, '__init__'), 'getattr'),
    (lambda path: Payload(getattr, OneCycleLR, 'step'), 'getattr'),
    (lambda path: Payload(torch.load, str(path)), 'load'),
    (lambda path: Payload(torch.hub.load, str(path)), 'load'),
    (lambda path: Payload(pickle.loads, b'cos\nsystem\n.'), 'loads'),
    (lambda path: Foreign(), 'Foreign'),
])
def test_runs_nothing(tmp_path, reader, payload, name, zipped):
    written = tmp_path / 'written'
    path = str(tmp_path / 'evil.pth')
    torch.save(dict(state_dict={}, meta=payload(written)), path,
               _use_new_zipfile_serialization=zipped)
    with pytest.raises(UnsafeCheckpointError,
                       match=f'(?s)evil.pth.*{name}.*--trust-checkpoint'):
        load_file(path)
    assert not written.exists()


def test_safetensors(tmp_path):
    """Metadata are JSON where they are ours, and text where they are not."""
    path = tmp_path / 'weights.safetensors'
    weights = dict(a=torch.arange(6.).view(2, 3), b=torch.ones(2).half())
    save_file(weights, path, dict(epoch='12', dataset_meta='{"classes": []}',
                                  format='pt'))
    found = load_file(str(path))
    assert found['meta'] == dict(
        epoch=12, dataset_meta=dict(classes=[]), format='pt')
    assert found['state_dict'].keys() == weights.keys()
    for key, value in weights.items():
        assert torch.equal(found['state_dict'][key], value)
        assert found['state_dict'][key].dtype == value.dtype


@pytest.mark.parametrize('command', [
    ['test.py', CONFIG, 'EVIL'],
    ['train.py', CONFIG, '--resume', 'EVIL'],
    ['train.py', CONFIG, '--cfg-options', 'load_from=EVIL'],
    ['analysis_tools/stiffness.py', CONFIG, 'EVIL'],
])
def test_tools(tmp_path, command):
    written, evil = tmp_path / 'written', tmp_path / 'evil.pth'
    torch.save(dict(state_dict={},
                    meta=Payload(os.system, f'touch {written}')), evil)
    tool, *arguments = (part.replace('EVIL', str(evil)) for part in command)
    with pytest.raises(UnsafeCheckpointError, match='--trust-checkpoint'):
        call_tool(load_tool(tool), *arguments)
    assert not written.exists()
