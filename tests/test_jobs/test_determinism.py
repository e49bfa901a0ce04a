"""Same seed, same machine: the same bits."""

import pytest
import torch
from mmengine.config import Config
from mmengine.runner import Runner

from mmstepnet import steps
from mmstepnet.steps.tail.dispatch import Tail

CONFIG = 'configs/digits/resnet20_stepnet_digits.py'
ITERATIONS = 5


def train(work_dir):
    """Weights and buffers after some iterations, augmentation included."""
    cfg = Config.fromfile(CONFIG)
    cfg.merge_from_dict({
        'work_dir': str(work_dir),
        'experiment_name': work_dir.name,
        'randomness': dict(seed=3, deterministic=True),
        'train_dataloader': dict(batch_size=32, num_workers=2),
        'default_hooks.checkpoint': None,
    })
    cfg.train_cfg = dict(by_epoch=False, max_iters=ITERATIONS)
    cfg.param_scheduler = None
    cfg.val_dataloader = cfg.val_cfg = cfg.val_evaluator = None
    cfg.test_dataloader = cfg.test_cfg = cfg.test_evaluator = None
    for name in ('collate_fn', 'pin_memory'):
        cfg.train_dataloader.setdefault(
            name, dict(type='default_collate')
            if name == 'collate_fn' else False)
    model = Runner.from_cfg(cfg).train()
    return {k: v.clone() for k, v in model.state_dict().items()}


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
