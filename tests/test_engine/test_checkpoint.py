import pytest
import torch
from mmengine.registry import init_default_scope
from mmengine.runner import Runner
from mmpretrain.models import ImageClassifier
from mmstepnet.engine.checkpoint import check_checkpoint, load_weights


def classifier(depth=20, attention=None):
    init_default_scope('mmpretrain')
    return ImageClassifier(
        backbone=dict(
            type='mmstepnet.StepResNetCIFAR', depth=depth,
            attention=attention),
        neck=dict(type='GlobalAveragePooling'),
        head=dict(type='LinearClsHead', num_classes=10, in_channels=64))


@pytest.fixture
def checkpoint(tmp_path):
    path = tmp_path / 'whole.pth'
    torch.save(dict(state_dict=classifier().state_dict(), meta={}), path)
    return path


@pytest.fixture
def runner(tmp_path):
    return lambda model: Runner(
        model, str(tmp_path), experiment_name=tmp_path.name)


def test_whole_checkpoint_passes_and_loads(checkpoint, runner):
    check_checkpoint(str(checkpoint))
    model = classifier()
    load_weights(runner(model), str(checkpoint))
    expected = torch.load(checkpoint)['state_dict']
    assert all(torch.equal(v, expected[k])
               for k, v in model.state_dict().items())


@pytest.mark.parametrize('share', [0, 0.3, 0.99])
def test_truncated_checkpoint(checkpoint, share):
    whole = checkpoint.read_bytes()
    checkpoint.write_bytes(whole[:int(len(whole) * share)])
    with pytest.raises(ValueError, match='whole.pth.*not a whole.*cut off'):
        check_checkpoint(str(checkpoint))


def test_other_files(tmp_path):
    with pytest.raises(FileNotFoundError, match='missing.pth'):
        check_checkpoint(str(tmp_path / 'missing.pth'))
    text = tmp_path / 'notes.pth'
    text.write_text('no checkpoint')
    with pytest.raises(ValueError, match='another kind of file'):
        check_checkpoint(str(text))
    torch.save(torch.ones(3), text)
    with pytest.raises(ValueError, match='holds a Tensor'):
        check_checkpoint(str(text))


@pytest.mark.parametrize('foreign', [
    dict(depth=56),
    dict(attention=dict(type='StepNet')),
])
def test_foreign_checkpoint_is_not_evaluated(checkpoint, runner, foreign):
    """Mmengine would warn and go on with random weights."""
    with pytest.raises(ValueError, match='does not fit the model'):
        load_weights(runner(classifier(**foreign)), str(checkpoint))
