import os

import pytest
import torch
from mmengine.registry import init_default_scope
from mmengine.runner import CheckpointLoader
from mmpretrain.models import ImageClassifier, SwinTransformer

from mmstepnet.jobs import checkpoint as checkpoint_module
from mmstepnet.jobs.checkpoint import (
    find_resumable,
    load_weights,
    read_checkpoint,
)
from mmstepnet.jobs.safe_load import UnsafeCheckpointError


def classifier(depth=20, attention=None, data_preprocessor=None, **kwargs):
    init_default_scope('mmpretrain')
    return ImageClassifier(
        data_preprocessor=data_preprocessor,
        backbone=dict(
            type='mmstepnet.StepResNetCIFAR', depth=depth,
            attention=attention, **kwargs),
        neck=dict(type='GlobalAveragePooling'),
        head=dict(type='LinearClsHead', num_classes=10, in_channels=64))


def load(model, path):
    load_weights(model, read_checkpoint(str(path)), str(path))


@pytest.fixture
def checkpoint(tmp_path):
    path = tmp_path / 'whole.pth'
    torch.save(dict(state_dict=classifier().state_dict(), meta={}), path)
    return path


def test_whole_checkpoint_passes(checkpoint):
    state_dict = read_checkpoint(str(checkpoint))['state_dict']
    expected = torch.load(checkpoint)['state_dict']
    assert all(torch.equal(v, expected[k]) for k, v in state_dict.items())
    load(classifier(), str(checkpoint))


def test_bare_and_wrapped_state_dicts_pass(tmp_path):
    path = str(tmp_path / 'weights.pth')
    weights = classifier().state_dict()
    for prefix in ('', 'module.'):
        torch.save({prefix + k: v for k, v in weights.items()}, path)
        load(classifier(), path)


def test_other_files(tmp_path):
    with pytest.raises(FileNotFoundError, match='missing.pth'):
        read_checkpoint(str(tmp_path / 'missing.pth'))


@pytest.mark.parametrize('foreign, difference', [
    (dict(depth=56), 'missing'),
    (dict(attention=dict(type='StepNet')), r'missing .*step\.attention'),
    (dict(base_channels=8, stem_channels=8), 'of another shape'),
])
def test_foreign_checkpoint_is_refused(checkpoint, foreign, difference):
    """Mmengine would warn and go on with random weights."""
    with pytest.raises(
            ValueError, match=f'does not fit the model.*{difference}'):
        load(classifier(**foreign), str(checkpoint))


@pytest.mark.parametrize('mean, warned', [(120., False), (110., True)])
def test_colours_that_published_weights_hold(checkpoint, mean, warned,
                                             monkeypatch):
    """The config says them; where it says others, it is told."""
    model = classifier(data_preprocessor=dict(
        mean=[120.] * 3, std=[60.] * 3))
    content = torch.load(checkpoint)
    content['state_dict']['data_preprocessor.mean'] = torch.full(
        (3, 1, 1), mean)
    torch.save(content, checkpoint)
    told = []
    monkeypatch.setattr(checkpoint_module, 'print_log',
                        lambda message, **kwargs: told.append(message))
    load(model, checkpoint)
    assert model.data_preprocessor.mean.flatten().tolist() == [120.] * 3
    assert ['mean, beginning with [110.0, 110.0, 110.0]' in message
            for message in told] == [True] * warned


def test_names_of_older_versions_are_the_models_to_read(tmp_path):
    """MMPretrain's first Swin had one norm, `norm`; its own reading knows."""
    model = SwinTransformer('tiny', img_size=32, patch_size=4, window_size=4,
                            stage_cfgs=dict(block_cfgs={}))
    weights = model.state_dict()
    old = {k.replace('norm3.', 'norm.'): v + 1 if v.is_floating_point() else v
           for k, v in weights.items()}
    assert old.keys() != weights.keys()
    path = str(tmp_path / 'old.pth')
    torch.save(dict(state_dict=old), path)
    load(model, path)
    torch.testing.assert_close(model.norm3.weight, old['norm.weight'])
    del old['norm.weight']
    torch.save(dict(state_dict=old), path)
    with pytest.raises(ValueError, match='missing 1 .*norm3.weight'):
        load(model, path)


def test_addresses(checkpoint, monkeypatch):
    monkeypatch.setattr(
        CheckpointLoader, 'load_checkpoint',
        lambda name, place: torch.load(checkpoint, place))
    load(classifier(), 'https://models.example/net-1.pth')


def save(folder, name, iterations, time, **content):
    path = folder / name
    torch.save(dict(state_dict={}, optimizer={}, meta=dict(iter=iterations),
                    **content), path)
    os.utime(path, (time, time))
    return str(path)


class Foreign:
    pass


def test_the_one_of_most_iterations_goes_on(tmp_path, monkeypatch):
    """Copied files are as old as their copying."""
    said = []
    monkeypatch.setattr(checkpoint_module, 'print_log',
                        lambda message, **kwargs: said.append(message))
    assert find_resumable(str(tmp_path)) is None
    other = tmp_path / 'out_dir'
    other.mkdir()
    paths = [save(folder, name, iterations, time)
             for folder, name, iterations, time in (
                 (tmp_path, 'epoch_2.pth', 20, 300),
                 (tmp_path, 'interim.pth', 95, 200),
                 (other, 'epoch_10.pth', 100, 100))]
    torch.save(dict(state_dict={}, meta=dict(iter=999)),
               tmp_path / 'best.pth')  # weights alone
    both = str(tmp_path), str(other)
    path, checkpoint = find_resumable(*both)
    assert path == paths[2] and checkpoint['meta']['iter'] == 100
    assert find_resumable(both[0])[0] == paths[1]
    # Cut off, or more than data, it is passed over, not silently.
    size = os.path.getsize(paths[2])
    assert not said
    os.truncate(paths[2], size - 40)
    assert find_resumable(*both)[0] == paths[1]
    message, = said
    assert 'passed over' in message and 'epoch_10.pth' in message
    save(tmp_path, 'epoch_11.pth', 110, 400, message_hub=Foreign())
    assert find_resumable(*both)[0] == paths[1]
    for name in ('interim.pth', 'epoch_2.pth'):
        (tmp_path / name).unlink()
    with pytest.raises(UnsafeCheckpointError, match='epoch_11.pth'):
        find_resumable(*both)
    with pytest.raises(ValueError, match='epoch_10.pth.*not a whole'):
        find_resumable(both[1])
