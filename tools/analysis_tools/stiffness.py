"""Measure the stiffness of a trained model, with any config of a host.

Writes stiffness_SPLIT_CHECKPOINT.npz and its figures, and prints TNS, the
integral of the stiffness proportion and the mean NSI of each stage. Where
the whole split is measured and the config has an evaluator for it, the
model is evaluated in the same pass and the metrics are kept in the record.
"""

import argparse
import os.path as osp
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.evaluator import Evaluator
from mmengine.registry import DATASETS
from mmengine.runner import Runner
from mmengine.utils import track_iter_progress
from torch.utils.data import DataLoader, Dataset, Subset

from mmstepnet.engine.checkpoint import load_weights, read_checkpoint
from mmstepnet.engine.job import (
    KeyValueAction,
    add_trust_argument,
    load_config,
    positive_int,
)
from mmstepnet.engine.patches import patch_mmengine
from mmstepnet.figures import load_run, save_stiffness_figures
from mmstepnet.figures.trajectories import spread_indices
from mmstepnet.stiffness import TrajectoryRecorder, save_record
from mmstepnet.stiffness.trajectory import DEFAULT_READING

SPLITS = ('train', 'val', 'test')


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', help='config file')
    parser.add_argument('checkpoint', help='checkpoint file')
    parser.add_argument(
        '--split',
        choices=SPLITS,
        default='test',
        help='which data loader of the config is read; the train loader with '
        'its augmentation, but every sample once and in order. '
        'Default: test')
    parser.add_argument(
        '--max-samples',
        type=positive_int,
        metavar='N',
        help='measure N samples, evenly taken from the data set. '
        'Default: all')
    parser.add_argument(
        '--blocks',
        nargs='+',
        metavar='PATTERN',
        help="names of the residual blocks, such as 'layer3.*', for a model "
        'whose blocks are not known. Default: all that are')
    parser.add_argument(
        '--out',
        metavar='DIR',
        help="where files go. Default: stiffness/ in the config's work_dir, "
        'else in ./work_dirs/NAME_OF_THE_CONFIG')
    parser.add_argument(
        '--device', help='such as cpu or cuda:1. Default: a GPU if there is')
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=KeyValueAction,
        help='settings that override the config, as key=value pairs, for '
        'example test_dataloader.batch_size=4')
    add_trust_argument(parser)
    parser.set_defaults(work_dir=None, launcher='none', local_rank=0)
    return parser.parse_args()


def build_runner(cfg: Config, out_dir: Path) -> Runner:
    """A runner that only holds the model: no loop, hook or log server."""
    cfg = cfg.copy()
    for split in SPLITS:
        for part in ('dataloader', 'evaluator', 'cfg'):
            cfg[f'{split}_{part}'] = None
    cfg.optim_wrapper = cfg.param_scheduler = cfg.visualizer = None
    cfg.custom_hooks, cfg.load_from, cfg.resume = [], None, False
    cfg.work_dir, cfg.log_level = str(out_dir), 'WARNING'
    return Runner.from_cfg(cfg)


def build_dataloader(cfg: Config, split: str,
                     max_samples: int | None) -> DataLoader:
    """The split's data, every sample once, in the data set's order.

    Raises:
        ValueError: The config has no such split, or it is empty.
    """
    loader = cfg.get(f'{split}_dataloader')
    if loader is None:
        raise ValueError(
            f'{cfg.filename} has no {split}_dataloader; choose another '
            f'--split of {", ".join(SPLITS)}')
    loader = loader.copy()
    dataset: Dataset = DATASETS.build(loader.pop('dataset'))
    if len(dataset) == 0:
        raise ValueError(f'the {split} data set of {cfg.filename} is empty')
    if max_samples is not None and max_samples < len(dataset):
        dataset = Subset(dataset, spread_indices(len(dataset), max_samples))
    for key in ('batch_sampler', 'drop_last', 'num_batch_per_epoch'):
        loader.pop(key, None)
    sampler = dict(type='DefaultSampler', shuffle=False)
    return Runner.build_dataloader(
        dict(loader, dataset=dataset, sampler=sampler), seed=0)


def build_evaluator(runner: Runner, cfg: Config, split: str,
                    dataset: Dataset) -> Evaluator | None:
    """The split's evaluator; None where part of it would be evaluated."""
    evaluator = cfg.get(f'{split}_evaluator')
    if evaluator is None or isinstance(dataset, Subset):
        return None
    evaluator = runner.build_evaluator(evaluator)
    evaluator.dataset_meta = getattr(dataset, 'metainfo', None)
    return evaluator


@torch.no_grad()
def measure(
        model: torch.nn.Module, dataloader: DataLoader,
        evaluator: Evaluator | None, blocks: list[str] | None
) -> tuple[TrajectoryRecorder, dict]:
    """Record, and evaluate where there is an evaluator.

    Raises:
        ValueError: The model does not pass each sample exactly once.
    """
    recorder = TrajectoryRecorder(model, blocks)
    print(f'{len(recorder.blocks)} residual steps; left out as the first of '
          f'their stages: {", ".join(recorder.excluded)}')
    with recorder:
        for batch in track_iter_progress((dataloader, len(dataloader))):
            outputs = model.test_step(batch)
            if evaluator is not None:
                evaluator.process(data_samples=outputs, data_batch=batch)
    size = len(dataloader.dataset)
    if len(recorder) != size:
        raise ValueError(
            f'the blocks saw {len(recorder)} samples of a data set of {size}: '
            'a model that passes an image several times, or in parts, has no '
            'trajectory per sample; choose other blocks by --blocks')
    return recorder, evaluator.evaluate(size) if evaluator else {}


def main() -> None:
    args = parse_args()
    patch_mmengine(args.trust_checkpoint)
    checkpoint = read_checkpoint(args.checkpoint, args.trust_checkpoint)
    cfg = load_config(args)
    out_dir = Path(args.out or osp.join(cfg.work_dir, 'stiffness'))
    runner = build_runner(cfg, out_dir)
    dataloader = build_dataloader(cfg, args.split, args.max_samples)
    evaluator = build_evaluator(runner, cfg, args.split,
                                dataloader.dataset)
    load_weights(runner.model, checkpoint, args.checkpoint)
    model = runner.model.to(args.device or get_device()).eval()
    recorder, metrics = measure(model, dataloader, evaluator, args.blocks)

    meta = checkpoint['meta']
    name = f'stiffness_{args.split}_{Path(args.checkpoint).stem}'
    path = out_dir / f'{name}.npz'
    save_record(
        path,
        **recorder.record,
        stages=recorder.stages,
        blocks=recorder.blocks,
        excluded=recorder.excluded,
        settings={
            'model': Path(args.config).stem,
            'checkpoint': str(args.checkpoint),
            'split': args.split,
            'reading': DEFAULT_READING,
            'dataset_size': len(recorder),
            **{k: meta[k] for k in ('epoch', 'iter') if k in meta},
            'metrics': {
                k: float(v)
                for k, v in metrics.items() if isinstance(v, (int, float))
            },
        })
    save_stiffness_figures(path, out_dir)

    run = load_run(path, name)
    print(f'TNS  {run.tns:.6g}' + (
        ' by definition: one block a stage is recorded'
        if run.single_block_stages else ''))
    print(f'∬p̂   {run.proportion:.6g}')
    for name, value in zip(run.stage_names.values(), run.stage_nsi):
        print(f'mean NSI of {name}  {value:.6g}')
    for key, value in run.settings['metrics'].items():
        print(f'{key}  {value:.6g}')
    if evaluator is None:
        print('not evaluated: ' + (
            'only a part of the data is measured' if isinstance(
                dataloader.dataset, Subset) else
            f'the config has no {args.split}_evaluator'))
    print(f'{len(recorder)} samples, record and figures: {path}')


if __name__ == '__main__':
    main()
