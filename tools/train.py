"""Train any config of an OpenMMLab host, ours among them."""

import argparse
import os.path as osp

from mmengine.config import Config
from mmengine.hooks import CheckpointHook
from mmengine.registry import HOOKS

from mmstepnet.jobs.checkpoint import find_resumable, read_checkpoint
from mmstepnet.jobs.data_check import check_data, named_data
from mmstepnet.jobs.job import (
    add_hooks,
    add_job_arguments,
    build_runner,
    load_config,
    named_weights,
    process_group,
)
from mmstepnet.jobs.patches import patch_mmengine, preload_checkpoint


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add_job_arguments(parser)
    parser.add_argument(
        '--amp', action='store_true', help='automatic mixed precision')
    parser.add_argument(
        '--auto-scale-lr', action='store_true',
        help="scale the learning rate by this job's batch size over "
        'auto_scale_lr.base_batch_size of the config')
    parser.add_argument(
        '--resume', nargs='?', const='auto', metavar='CHECKPOINT',
        help='go on from a checkpoint; without a value from the last whole '
        "one of the job, or from the config's load_from where there is none")
    return parser.parse_args()


def prepare_checkpoints(cfg: Config, args: argparse.Namespace) -> None:
    """Choose what to go on from, and a hook that a kill cannot harm."""
    hooks = cfg.setdefault('default_hooks', {})
    saving = hooks.setdefault('checkpoint', dict(type='CheckpointHook'))
    # None is a job that shall keep nothing.
    if saving is not None and is_class(saving['type'], CheckpointHook):
        saving['type'] = 'mmstepnet.DurableCheckpointHook'
    if args.resume not in (None, 'auto'):
        cfg.load_from, cfg.resume = args.resume, True
    elif args.resume or cfg.get('resume') and cfg.get('load_from') is None:
        found = find_resumable(*checkpoint_folders(cfg),
                               trusted=args.trust_checkpoint)
        cfg.resume = found is not None
        if found is not None:
            cfg.load_from, checkpoint = found
            preload_checkpoint(cfg.load_from, checkpoint)
            return
    if cfg.get('load_from') and '://' not in cfg.load_from:
        preload_checkpoint(
            cfg.load_from,
            read_checkpoint(cfg.load_from, args.trust_checkpoint))


def is_class(kind: str | type, wanted: type) -> bool:
    """Whether a config's type is a class itself, by whatever name."""
    return (HOOKS.get(kind) if isinstance(kind, str) else kind) is wanted


def checkpoint_folders(cfg: Config) -> list[str]:
    """Where a job's checkpoints are: its own folder, and mmengine's other."""
    saving = cfg.default_hooks.checkpoint or {}
    out_dir = saving.get('out_dir')
    if out_dir is None:
        return [cfg.work_dir]
    if '://' in out_dir:
        raise ValueError(
            f'--resume does not look for checkpoints in out_dir={out_dir!r}, '
            'which is no folder; name one with --resume CHECKPOINT')
    name = osp.basename(osp.abspath(cfg.work_dir))
    return [cfg.work_dir, osp.join(out_dir, name)]


def main() -> None:
    args = parse_args()
    patch_mmengine(args.trust_checkpoint)
    cfg = load_config(args)
    if args.amp:
        cfg.optim_wrapper.type = 'AmpOptimWrapper'
        cfg.optim_wrapper.setdefault('loss_scale', 'dynamic')
    if args.auto_scale_lr:
        if 'base_batch_size' not in cfg.get('auto_scale_lr', {}):
            raise SystemExit('--auto-scale-lr needs '
                             'auto_scale_lr.base_batch_size in the config')
        cfg.auto_scale_lr.enable = True
    prepare_checkpoints(cfg, args)
    check_data(cfg, 'train', 'val')
    add_hooks(cfg, 'DataCheckHook', 'FiniteCheckHook')
    with process_group(cfg), named_data(), named_weights(cfg):
        build_runner(cfg).train()


if __name__ == '__main__':
    main()
