import os
import pickle
import subprocess
import sys
from collections import OrderedDict

import numpy as np
import pytest
import torch
from mmengine.logging import HistoryBuffer, MessageHub
from mmengine.optim.scheduler.param_scheduler import (
    OneCycleParamScheduler as OneCycleLR,
)
from mmengine.registry import PARAM_SCHEDULERS
from mmengine.runner import CheckpointLoader

from mmstepnet.engine import safe_load
from mmstepnet.engine.safe_load import (
    UnsafeCheckpointError,
    guard_checkpoints,
    load_data,
)


class Payload:
    """What an attacker puts into a checkpoint."""

    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


class Foreign:
    pass


@pytest.fixture(params=['allowlist', 'unpickler'])
def reader(request, monkeypatch):
    """Both ways of reading, the second one that of old PyTorch versions."""
    if request.param == 'allowlist' and not safe_load.HAS_ALLOWLIST:
        pytest.skip('this PyTorch has no allowlist')
    monkeypatch.setattr(
        safe_load, 'HAS_ALLOWLIST', request.param == 'allowlist')


@pytest.fixture
def guarded(monkeypatch):
    monkeypatch.setattr(CheckpointLoader, '_schemes',
                        CheckpointLoader._schemes.copy())
    guard_checkpoints()


def mmengine_content():
    hub = MessageHub('safe_load')
    hub.update_scalar('train/loss', torch.tensor(0.5))
    hub.update_scalar('train/lr', np.float32(0.1))
    hub.update_info('epoch', 3)
    hub.update_info('palette', np.arange(6, dtype=np.uint8).reshape(2, 3))
    return dict(
        meta=dict(classes=('a', 'b'), where=slice(1, 2), seen={1, 2}),
        state_dict=OrderedDict(
            half=torch.ones(2, dtype=torch.bfloat16),
            parameter=torch.nn.Parameter(torch.arange(3.)),
            view=torch.arange(6).view(2, 3).t()),
        message_hub=hub.state_dict())


@pytest.mark.parametrize('zipped', [True, False])
def test_reads_what_mmengine_stores(tmp_path, reader, zipped):
    content = mmengine_content()
    path = str(tmp_path / 'whole.pth')
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    got = load_data(path)
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
    found = load_data(path)
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
        load_data(path)
    assert not written.exists()


def test_payload_is_real(tmp_path):
    """What is refused above does run where nobody minds."""
    written, path = tmp_path / 'written', tmp_path / 'evil.pth'
    torch.save(Payload(os.system, f'touch {written}'), path)
    torch.load(path, weights_only=False)
    assert written.exists()


def test_mmengine_reads_through_it(tmp_path, guarded):
    path, written = tmp_path / 'evil.pth', tmp_path / 'written'
    torch.save(dict(meta=Payload(os.system, f'touch {written}')), path)
    with pytest.raises(UnsafeCheckpointError):
        CheckpointLoader.load_checkpoint(str(path))
    torch.save(mmengine_content(), path)
    assert CheckpointLoader.load_checkpoint(str(path))['message_hub']
    with pytest.raises(FileNotFoundError, match='nowhere.pth'):
        CheckpointLoader.load_checkpoint(str(tmp_path / 'nowhere.pth'))
    assert not written.exists()


def test_other_sources(tmp_path, guarded, monkeypatch):
    """Addresses are fetched once and read as data; odd ones are refused."""
    fetched = []

    def fetch(url, path):
        fetched.append(url)
        torch.save(dict(state_dict={}), path)

    monkeypatch.setattr(torch.hub, 'get_dir', lambda: str(tmp_path))
    monkeypatch.setattr(torch.hub, 'download_url_to_file', fetch)
    for _ in range(2):
        for name in ('https://models.example/net-1.pth',
                     'torchvision://resnet18', 'open-mmlab://darknet53'):
            assert CheckpointLoader.load_checkpoint(name) == dict(
                state_dict={})
    assert len(fetched) == 3
    assert all(url.startswith('http') for url in fetched)
    with pytest.raises(ValueError, match='no model .resnet1.'):
        CheckpointLoader.load_checkpoint('torchvision://resnet1')
    for name in ('pavi://a/b', 's3://a/b', 'open-mmlab:s3://a/b'):
        with pytest.raises(UnsafeCheckpointError, match='Fetch the file'):
            CheckpointLoader.load_checkpoint(name)


@pytest.mark.parametrize('name', [
    'mmcls://vgg11', 'torchvision://resnet18', 'modelzoo://resnet18',
    'open-mmlab://resnet50_caffe', 'openmmlab://detectron2/resnet50_caffe'])
def test_named_models_are_read_as_mmengine_does(tmp_path, monkeypatch, name):
    """Classifiers stripped to their backbone, deprecated names known."""
    def fetch(url, path, *args, **kwargs):
        torch.save(dict(state_dict={
            'backbone.conv1.weight': torch.full((2, ), float(len(url))),
            'head.fc.bias': torch.ones(3)}), path)
    monkeypatch.setattr(torch.hub, 'download_url_to_file', fetch)
    monkeypatch.setattr(CheckpointLoader, '_schemes',
                        CheckpointLoader._schemes.copy())
    read = []
    for guard, folder in ((lambda: None, 'theirs'),
                          (guard_checkpoints, 'ours')):
        monkeypatch.setattr(torch.hub, 'get_dir',
                            lambda folder=folder: str(tmp_path / folder))
        monkeypatch.setenv('TORCH_HOME', str(tmp_path / folder))
        guard()
        read.append(CheckpointLoader.load_checkpoint(name)['state_dict'])
    theirs, ours = read
    assert theirs.keys() == ours.keys() and len(ours) == (
        1 if name.startswith('mmcls') else 2)
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def test_each_node_fetches_for_its_own(tmp_path, guarded, monkeypatch):
    """Nodes need not share a disk; the second's first rank is no rank 0."""
    def fetch(url, path):
        torch.save(dict(state_dict={}), path)

    monkeypatch.setattr(torch.hub, 'download_url_to_file', fetch)
    monkeypatch.setattr(torch.hub, 'get_dir', lambda: str(tmp_path))
    monkeypatch.setenv('RANK', '8')
    monkeypatch.setenv('LOCAL_RANK', '1')
    with pytest.raises(FileNotFoundError):
        CheckpointLoader.load_checkpoint('https://models.example/net-1.pth')
    monkeypatch.setenv('LOCAL_RANK', '0')
    CheckpointLoader.load_checkpoint('https://models.example/net-1.pth')
    monkeypatch.setenv('LOCAL_RANK', '1')
    CheckpointLoader.load_checkpoint('https://models.example/net-1.pth')


@pytest.mark.parametrize('command', [
    ['tools/test.py', 'CONFIG', 'EVIL'],
    ['tools/train.py', 'CONFIG', '--resume', 'EVIL'],
    ['tools/train.py', 'CONFIG', '--cfg-options', 'load_from=EVIL'],
    ['tools/analysis_tools/stiffness.py', 'CONFIG', 'EVIL'],
])
def test_tools(tmp_path, command):
    written, evil = tmp_path / 'written', tmp_path / 'evil.pth'
    torch.save(dict(state_dict={},
                    meta=Payload(os.system, f'touch {written}')), evil)
    names = dict(CONFIG='configs/digits/resnet20_stepnet_digits.py',
                 EVIL=str(evil))
    for key, value in names.items():
        command = [part.replace(key, value) for part in command]
    result = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True)
    assert result.returncode != 0
    assert 'UnsafeCheckpointError' in result.stderr
    assert '--trust-checkpoint' in result.stderr
    assert not written.exists()
