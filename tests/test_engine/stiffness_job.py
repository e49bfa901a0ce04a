"""A runner on real digits with StiffnessHook, alone or as one rank of many.

``python -m tests.test_engine.stiffness_job WORK_DIR`` runs validation as one
rank over gloo, once for each of :data:`SAMPLES`.
"""

import itertools
import json
import sys
from pathlib import Path

import torch
import torch.distributed
from mmengine.config import Config
from mmengine.runner import Runner
from mmengine.utils.dl_utils.parrots_wrapper import _BatchNorm

from mmstepnet.stiffness import Trajectories, TrajectoryRecorder
from tests.documents import ROOT
from tests.test_stiffness.reference import no_hooks as no_hooks_in
from tests.utils import perturb

VAL_IMAGES = 37
SAMPLES = (None, 11)
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
    for split, size, batch in (('train', 24, 8), ('val', images, 5),
                               ('test', images, 5)):
        cfg[f'{split}_dataloader'].update(
            batch_size=batch, num_workers=0, persistent_workers=False)
        cfg[f'{split}_dataloader'].dataset.indices = size
    cfg.merge_from_dict({
        'work_dir': str(work_dir),
        # Runners of one second would share log and message hub.
        'experiment_name': f'digits_{next(numbers)}',
        'visualizer.vis_backends': [dict(type='LocalVisBackend')],
        'train_cfg': dict(max_epochs=1, val_interval=1),
        'param_scheduler': [], 'custom_hooks': [], **(options or {})})
    cfg.custom_hooks.insert(0, dict(
        type='mmstepnet.StiffnessHook', **{'figures': False, **(hook or {})}))
    runner = Runner.from_cfg(cfg)
    with torch.no_grad():
        perturb(runner.model)
        for module in runner.model.modules():
            if isinstance(module, _BatchNorm):
                module.running_var.mul_(4)
    return runner


def no_hooks(model):
    return no_hooks_in(model) and not {
        'val_step', 'test_step', 'train_step'} & set(model.__dict__)


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
    return {key: value.current() for key, value in
            runner.message_hub.log_scalars.items() if 'stiffness' in key}


def log_text(work_dir):
    return ''.join(p.read_text() for p in work_dir.glob('*/*.log'))


def main():
    torch.distributed.init_process_group('gloo')
    for samples in SAMPLES:
        runner = digits_runner(
            Path(sys.argv[1], str(samples)), hook=dict(max_samples=samples))
        runner.val()
        print(json.dumps({
            key: float(value) for key, value in scalars(runner).items()}))
    torch.distributed.destroy_process_group()


if __name__ == '__main__':
    main()
