"""Same seed, same machine: the same bits."""

import pytest
import torch

from mmstepnet import steps
from mmstepnet.steps.tail.dispatch import Tail
from tests.documents import ROOT
from tests.programs import call_tool, load_tool

CONFIG = ROOT / 'configs/digits/resnet20_stepnet_digits.py'


def train(work_dir):
    """Weights and buffers after some iterations, augmentation included."""
    call_tool(load_tool('train.py'), CONFIG, '--work-dir', work_dir,
              '--cfg-options', 'randomness.seed=3',
              'randomness.deterministic=True', 'train_cfg.max_epochs=1',
              'train_dataloader.dataset.indices=160',
              'train_dataloader.batch_size=32',
              'train_dataloader.num_workers=2',
              'val_dataloader.dataset.indices=10',
              'default_hooks.checkpoint.interval=1')
    checkpoint = torch.load(work_dir / 'epoch_1.pth', weights_only=False)
    assert checkpoint['meta']['iter'] == 5
    return checkpoint['state_dict']


@pytest.fixture
def settings():
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = False


@pytest.mark.parametrize('fused', [True, False])
def test_bit_equal(tmp_path, settings, monkeypatch, fused):
    served, apply = [], Tail.apply
    monkeypatch.setattr(
        Tail, 'apply', lambda *args: served.append(1) or apply(*args))
    with steps.fused(fused):
        first, second = (train(tmp_path / name) for name in 'ab')
    assert bool(served) == fused
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name
