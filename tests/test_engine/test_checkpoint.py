import pytest
import torch
from mmengine.registry import init_default_scope
from mmpretrain.models import ImageClassifier

from mmstepnet.engine.checkpoint import check_checkpoint, check_weights


def classifier(depth=20, attention=None, **kwargs):
    init_default_scope('mmpretrain')
    return ImageClassifier(
        backbone=dict(
            type='mmstepnet.StepResNetCIFAR', depth=depth,
            attention=attention, **kwargs),
        neck=dict(type='GlobalAveragePooling'),
        head=dict(type='LinearClsHead', num_classes=10, in_channels=64))


@pytest.fixture
def checkpoint(tmp_path):
    path = tmp_path / 'whole.pth'
    torch.save(dict(state_dict=classifier().state_dict(), meta={}), path)
    return path


def test_whole_checkpoint_passes(checkpoint):
    state_dict = check_checkpoint(str(checkpoint))['state_dict']
    expected = torch.load(checkpoint)['state_dict']
    assert all(torch.equal(v, expected[k]) for k, v in state_dict.items())
    check_weights(classifier(), str(checkpoint))


def test_bare_and_wrapped_state_dicts_pass(tmp_path):
    path = str(tmp_path / 'weights.pth')
    weights = classifier().state_dict()
    for prefix in ('', 'module.'):
        torch.save({prefix + k: v for k, v in weights.items()}, path)
        check_weights(classifier(), path)


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


@pytest.mark.parametrize('foreign, difference', [
    (dict(depth=56), 'missing'),
    (dict(attention=dict(type='StepNet')), r'missing .*step\.attention'),
    (dict(base_channels=8, stem_channels=8), 'of another shape'),
])
def test_foreign_checkpoint_is_refused(checkpoint, foreign, difference):
    """Mmengine would warn and go on with random weights."""
    with pytest.raises(
            ValueError, match=f'does not fit the model.*{difference}'):
        check_weights(classifier(**foreign), str(checkpoint))
