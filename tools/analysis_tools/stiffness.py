"""Measure the stiffness of a trained model, with any config of a host.

Tests the model with StiffnessHook, writes stiffness_SPLIT_CHECKPOINT.npz and
its figures, and prints TNS and the stiffest blocks. Where the whole split is
measured and the config has an evaluator for it, the model is evaluated in the
same pass and the metrics are kept in the record.
"""

import argparse
import os.path as osp
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

from mmstepnet.checks import positive_int
from mmstepnet.engine.hooks import StiffnessHook
from mmstepnet.figures import save_stiffness_figures
from mmstepnet.figures.trajectories import spread_indices
from mmstepnet.jobs.job import add_config_options, load_model
from mmstepnet.stiffness import Trajectories

SPLITS = ('train', 'val', 'test')


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_config_options(parser)
    parser.add_argument('checkpoint', help='checkpoint file')
    parser.add_argument(
        '--split',
        choices=SPLITS,
        default='test',
        help='which data loader of the config is read; the train loader with '
        'its augmentation, but every sample once and in order. '
        'Default: test',
    )
    parser.add_argument(
        '--max-samples',
        type=positive_int,
        metavar='N',
        help='measure N samples, evenly taken from the data set. Default: all',
    )
    parser.add_argument(
        '--blocks',
        nargs='+',
        metavar='PATTERN',
        help="names of the residual blocks, such as 'layer3.*', for a model "
        'whose blocks are not known. Default: all that are',
    )
    parser.add_argument(
        '--out',
        metavar='DIR',
        help="where files go. Default: stiffness/ in the config's work_dir, "
        'else in ./work_dirs/NAME_OF_THE_CONFIG',
    )
    parser.add_argument(
        '--device', help='such as cpu or cuda:1. Default: a GPU if there is'
    )
    return parser.parse_args()


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


def main() -> None:
    args = parse_args()
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
    name = Path(args.checkpoint).name.removesuffix('.pth')
    name = f'stiffness_{args.split}_{name}'
    path = out_dir / f'{name}.npz'
    measured.save(path)
    save_stiffness_figures(measured, out_dir, name)
    print(f'\n{measured}')
    for key, value in measured.settings['metrics'].items():
        print(f'{key}: {value:.6g}')
    print(f'record and figures: {path}')


if __name__ == '__main__':
    main()
