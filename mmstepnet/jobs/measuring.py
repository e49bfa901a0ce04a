"""What ``tools/analysis_tools/stiffness.py`` does."""

import os.path as osp
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import torch.nn as nn
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.evaluator import Evaluator
from mmengine.registry import DATASETS
from mmengine.runner import Runner
from mmengine.utils import ProgressBar
from torch.utils.data import DataLoader, Subset

from mmstepnet.engine.hooks import StiffnessHook
from mmstepnet.figures import save_stiffness_figures
from mmstepnet.figures.trajectories import spread_indices
from mmstepnet.stiffness import Trajectories

from .job import load_model

SPLITS = ('train', 'val', 'test')


def measure(args: Namespace) -> None:
    """Measure the config and the checkpoint of a command line."""
    cfg, checkpoint, model = load_model(args)
    out_dir = Path(args.out or osp.join(cfg.work_dir, 'stiffness'))
    runner = build_runner(cfg, model, out_dir, args.split, args.max_samples)
    runner.model.to(args.device or get_device())
    hook = KeepStiffnessHook(blocks=args.blocks)
    runner.register_hook(hook)
    runner.test()
    if hook.trajectories is None:
        raise RuntimeError(f'no sample could be measured: {hook.why}')
    measured = replace(
        hook.trajectories,
        settings={
            **hook.trajectories.settings,
            'checkpoint': str(args.checkpoint),
            'split': args.split,
            **{
                key: checkpoint['meta'][key]
                for key in ('epoch', 'iter')
                if key in checkpoint['meta']
            },
        },
    )
    name = Path(args.checkpoint).stem
    name = f'stiffness_{args.split}_{name}'
    path = out_dir / f'{name}.npz'
    measured.save(path)
    save_stiffness_figures(measured, out_dir, name)
    print(f'\n{measured}')
    for key, value in measured.settings['metrics'].items():
        print(f'{key}: {value:.6g}')
    print(f'record and figures: {path}')


class KeepStiffnessHook(StiffnessHook):
    """Keeps what it measures, or why it could not, and shows how far it is."""

    trajectories: Trajectories | None = None
    why: str | None = None

    def before_test_epoch(self, runner: Runner) -> None:
        super().before_test_epoch(runner)
        self.bar = ProgressBar(len(runner.test_dataloader))

    def after_test_iter(self, *args, **kwargs) -> None:
        super().after_test_iter(*args, **kwargs)
        self.bar.update()

    def _warn(self, runner: Runner, why: str | None) -> None:
        super()._warn(runner, why)
        self.why = self.why or why

    def save_and_draw(
        self,
        runner: Runner,
        trajectories: Trajectories,
        scalars: dict[str, float],
    ) -> None:
        self.trajectories = trajectories


def build_dataloader(
    cfg: Config, split: str, max_samples: int | None
) -> DataLoader:
    """The split's data, every sample once, in the data set's order.

    Raises:
        ValueError: The config has no such split.
    """
    loader = cfg.get(f'{split}_dataloader')
    if loader is None:
        raise ValueError(
            f'{cfg.filename} has no {split}_dataloader; choose another '
            f'--split of {", ".join(SPLITS)}'
        )
    dataset = DATASETS.build(loader.dataset)
    if max_samples is not None and max_samples < len(dataset):
        dataset = Subset(dataset, spread_indices(len(dataset), max_samples))
    kept = {
        key: value
        for key, value in loader.items()
        if key not in ('batch_sampler', 'drop_last', 'num_batch_per_epoch')
    }
    return Runner.build_dataloader(
        dict(
            kept,
            dataset=dataset,
            sampler=dict(type='DefaultSampler', shuffle=False),
        ),
        seed=0,
    )


def build_runner(
    cfg: Config,
    model: nn.Module,
    out_dir: Path,
    split: str,
    max_samples: int | None,
) -> Runner:
    """A runner that tests the model on the split, without log files.

    A part of the split is not evaluated.
    """
    dataloader = build_dataloader(cfg, split, max_samples)
    part = isinstance(dataloader.dataset, Subset)
    evaluator = None if part else cfg.get(f'{split}_evaluator')
    return Runner(
        model,
        str(out_dir),
        test_dataloader=dataloader,
        test_evaluator=evaluator or Evaluator([]),
        test_cfg=dict(),
        default_hooks=dict(logger=None),
        env_cfg=cfg.get('env_cfg') or dict(),
        log_level='WARNING',
        default_scope=cfg.get('default_scope', 'mmengine'),
        cfg=cfg,
    )
