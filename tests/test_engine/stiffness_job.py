"""A runner on real digits with StiffnessHook."""

import itertools
from unittest.mock import Mock

import torch
from mmengine.config import Config
from mmengine.registry import VISBACKENDS
from mmengine.runner import Runner
from mmengine.visualization import BaseVisBackend

from mmstepnet.stiffness import Trajectories, TrajectoryRecorder
from tests.documents import ROOT
from tests.utils import perturb

VAL_IMAGES = 37
numbers = itertools.count()


def digits_runner(work_dir, images=VAL_IMAGES, hook=None, options=None):
    """Runner of a perturbed ResNet-20 on the digits.

    Args:
        work_dir (Path): Where it writes.
        images (int): Size of the validation and test sets.
        hook (dict, optional): Arguments of StiffnessHook.
        options (dict, optional): Dotted config keys and their values.
    """
    cfg = Config.fromfile(ROOT / 'configs/digits/resnet20_stepnet_digits.py')
    for split, size, batch in (
        ('train', 24, 8),
        ('val', images, 5),
        ('test', images, 5),
    ):
        cfg[f'{split}_dataloader'].update(
            batch_size=batch, num_workers=0, persistent_workers=False
        )
        cfg[f'{split}_dataloader'].dataset.indices = size
    cfg.merge_from_dict(
        {
            'work_dir': str(work_dir),
            # Runners of one second would share log and message hub.
            'experiment_name': f'digits_{next(numbers)}',
            'visualizer.vis_backends': [dict(type='LocalVisBackend')],
            'train_cfg': dict(max_epochs=1, val_interval=1),
            'param_scheduler': [],
            'custom_hooks': [],
            **(options or {}),
        }
    )
    cfg.custom_hooks.insert(
        0,
        dict(
            type='mmstepnet.StiffnessHook',
            **{'figures': False, **(hook or {})},
        ),
    )
    runner = Runner.from_cfg(cfg)
    perturb(runner.model)
    return runner


def recording(work_dir, name='val'):
    """What the hook has written."""
    return Trajectories.load(work_dir / f'stiffness/stiffness_{name}.npz')


def offline(runner, loader):
    """The recorder alone, over the runner's own data, batch by batch."""
    model = runner.model
    model.eval()
    with TrajectoryRecorder(model) as recorder, torch.no_grad():
        for batch in loader:
            model.test_step(batch)
    return recorder


def scalars(runner):
    return {
        key: value.current()
        for key, value in runner.message_hub.log_scalars.items()
        if 'stiffness' in key
    }


def log_text(work_dir):
    return ''.join(p.read_text() for p in work_dir.glob('*/*.log'))


@VISBACKENDS.register_module(force=True)
def remembered(save_dir, error=None):
    """A backend that keeps its calls; it may have lost its network."""
    backend = Mock(BaseVisBackend, _save_dir=save_dir)
    backend.add_scalars.side_effect = error and ConnectionError(error)
    return backend
