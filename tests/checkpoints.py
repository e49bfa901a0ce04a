"""Contents of checkpoints, good and evil."""

from collections import Counter, OrderedDict

import numpy as np
import pytest
import torch
from mmengine.config import Config, ConfigDict
from mmengine.fileio import LocalBackend
from mmengine.fileio.backends import registry_utils
from mmengine.logging import MessageHub
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import CheckpointLoader, checkpoint

from tests.utils import perturb


@pytest.fixture
def restored_mmengine(monkeypatch):
    """The tools' patches of it would last for a process."""
    monkeypatch.setattr(torch, 'load', torch.load)
    monkeypatch.setattr(
        checkpoint,
        'get_torch_safe_globals',
        getattr(checkpoint, 'get_torch_safe_globals', list),
        raising=False,
    )
    monkeypatch.setattr(
        CheckpointLoader, '_schemes', CheckpointLoader._schemes.copy()
    )
    monkeypatch.setattr(
        registry_utils, 'backends', dict(registry_utils.backends)
    )
    monkeypatch.setitem(registry_utils.prefix_to_backends, '', LocalBackend)


def load_config(config):
    """A config, whose model has its data preprocessor as in a runner."""
    cfg = Config.fromfile(config)
    init_default_scope(cfg.default_scope)
    if 'data_preprocessor' in cfg:
        cfg.model.setdefault('data_preprocessor', cfg.data_preprocessor)
    return cfg


def save_model(path, config, **meta):
    """Write a checkpoint of a config's model with random weights."""
    model = perturb(MODELS.build(load_config(config).model)).eval()
    torch.save(dict(state_dict=model.state_dict(), meta=meta), path)
    return model


class Payload:
    """What an attacker puts into a checkpoint."""

    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


def mmengine_content():
    hub = MessageHub('safe_load')
    hub.update_scalar('train/loss', torch.tensor(0.5))
    hub.update_scalar('train/lr', np.float32(0.1))
    hub.update_info('epoch', 3)
    hub.update_info('palette', np.arange(6, dtype=np.uint8).reshape(2, 3))
    return dict(
        meta=dict(
            classes=('a', 'b'),
            where=slice(1, 2),
            seen={1, 2},
            dataset_meta=dict(joints=ConfigDict(left=dict(id=0))),
        ),
        state_dict=OrderedDict(
            half=torch.ones(2, dtype=torch.bfloat16),
            parameter=torch.nn.Parameter(torch.arange(3.0)),
            view=torch.arange(6).view(2, 3).t(),
        ),
        # Of MultiStepLR, whose steps may come twice.
        param_schedulers=[dict(milestones=Counter([2, 2, 5]))],
        message_hub=hub.state_dict(),
    )
