"""What the tools change in mmengine."""

import os
import re
import signal
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.fileio import get_file_backend
from mmengine.runner import CheckpointLoader

from mmstepnet.jobs.job import named_weights
from mmstepnet.jobs.patches import (
    FetchError,
    patch_mmengine,
    preload_checkpoint,
)
from mmstepnet.jobs.safe_load import UnsafeCheckpointError
from tests.checkpoints import (
    Payload,
    mmengine_content,
    restored_mmengine,  # noqa: F401, a fixture
)
from tests.programs import run_ranks

pytestmark = pytest.mark.usefixtures('restored_mmengine')


@pytest.fixture
def patched(restored_mmengine):  # noqa: F811
    patch_mmengine()


def test_files_of_mmengine_are_whole(tmp_path, patched, monkeypatch):
    """Through the backend of its checkpoints."""
    backend = get_file_backend(str(tmp_path))
    path = tmp_path / 'new' / 'file'
    backend.put(b'bytes', path)
    assert path.read_bytes() == b'bytes'
    backend.put_text('Stra\u00dfe', path, encoding='latin1')
    assert backend.get_text(path, encoding='latin1') == 'Stra\u00dfe'

    def killed(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, 'replace', killed)
    with pytest.raises(KeyboardInterrupt):
        backend.put(b'half', path)
    assert path.read_bytes() == 'Stra\u00dfe'.encode('latin1')
    assert os.listdir(path.parent) == ['file']


def test_a_checkpoint_is_handed_over_once(tmp_path, patched):
    """Other names, of which it is the beginning, are read from the disk."""
    path = str(tmp_path / 'net.pth')
    for name in (path, f'{path}.old'):
        torch.save(dict(state_dict=dict(name=name)), name)
    held = dict(state_dict=dict(name='held'))
    preload_checkpoint(path, held)
    read = CheckpointLoader.load_checkpoint
    assert read(f'{path}.old')['state_dict']['name'] == f'{path}.old'
    assert read(path, 'cpu') is held
    assert read(path)['state_dict']['name'] == path


def test_trusted_files_run(tmp_path):
    """So what is refused elsewhere would run."""
    written, path = tmp_path / 'written', tmp_path / 'evil.pth'
    torch.save(dict(meta=Payload(os.system, f'touch {written}')), path)
    patch_mmengine(trusted=True)
    CheckpointLoader.load_checkpoint(str(path))
    assert written.exists()


def test_mmengine_reads_through_it(tmp_path, patched):
    path, written = tmp_path / 'evil.pth', tmp_path / 'written'
    torch.save(dict(meta=Payload(os.system, f'touch {written}')), path)
    with pytest.raises(UnsafeCheckpointError):
        CheckpointLoader.load_checkpoint(str(path))
    torch.save(mmengine_content(), path)
    assert CheckpointLoader.load_checkpoint(str(path))['message_hub']
    with pytest.raises(FileNotFoundError, match='nowhere.pth'):
        CheckpointLoader.load_checkpoint(str(tmp_path / 'nowhere.pth'))
    assert not written.exists()


def test_other_sources(tmp_path, patched, monkeypatch):
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
                          (patch_mmengine, 'ours')):
        monkeypatch.setattr(torch.hub, 'get_dir',
                            lambda folder=folder: str(tmp_path / folder))
        monkeypatch.setenv('TORCH_HOME', str(tmp_path / folder))
        guard()
        read.append(CheckpointLoader.load_checkpoint(name)['state_dict'])
    theirs, ours = read
    assert theirs.keys() == ours.keys() and len(ours) == (
        1 if name.startswith('mmcls') else 2)
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def test_each_node_fetches_for_its_own(tmp_path, patched, monkeypatch):
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


def test_the_key_of_what_cannot_be_fetched_is_named(
        tmp_path, patched, monkeypatch):
    def fetch(url, path):
        raise OSError('no route to host')

    monkeypatch.setattr(torch.hub, 'download_url_to_file', fetch)
    monkeypatch.setattr(torch.hub, 'get_dir', lambda: str(tmp_path))
    name = 'torchvision://resnet18'
    cfg = Config(dict(load_from=None, model=dict(backbone=dict(
        init_cfg=dict(type='Pretrained', checkpoint=name)))))
    with pytest.raises(FetchError, match=re.escape(
            f'model.backbone.init_cfg.checkpoint = {name!r}: rank 0 could')):
        with named_weights(cfg):
            CheckpointLoader.load_checkpoint(name)


def test_every_rank_hears_of_a_file_that_cannot_be_fetched(tmp_path):
    """Else the others would wait for ever."""
    codes, errors = run_ranks(
        2, Path(__file__).with_name('fetching_rank.py'), tmp_path)
    for code, error in zip(codes, errors):
        # gloo's threads may abort a process whose peer has left before it.
        assert code in (1, -signal.SIGABRT), error
        assert re.search('FetchError: rank 0 could not fetch '
                         "'https://models.example/net-1.pth' .*OSError: no "
                         'route to host.*by its path', error), error
