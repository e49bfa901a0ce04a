"""Train any config of an OpenMMLab host, ours among them."""

import argparse

from mmengine.config import Config

from mmstepnet.engine.checkpoint import check_checkpoint, find_resumable
from mmstepnet.engine.data_check import check_data, named_data
from mmstepnet.engine.job import (
    add_hooks,
    add_job_arguments,
    build_runner,
    load_config,
    process_group,
)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add_job_arguments(parser)
    parser.add_argument(
        '--amp', action='store_true', help='automatic mixed precision')
    parser.add_argument(
        '--auto-scale-lr',
        action='store_true',
        help="scale the learning rate by this job's batch size over "
        'auto_scale_lr.base_batch_size of the config')
    parser.add_argument(
        '--resume',
        nargs='?',
        const='auto',
        metavar='CHECKPOINT',
        help='go on from a checkpoint; without a value from the last whole '
        'one in the work directory, or from the start where there is none')
    return parser.parse_args()


def prepare_checkpoints(cfg: Config, args: argparse.Namespace) -> None:
    """Choose what to go on from, and a hook that a kill cannot harm."""
    if args.resume is not None:
        cfg.resume = True
        cfg.load_from = None if args.resume == 'auto' else args.resume
    if cfg.get('resume') and cfg.get('load_from') is None:
        cfg.load_from = find_resumable(cfg.work_dir, args.trust_checkpoint)
        cfg.resume = cfg.load_from is not None
    elif cfg.get('load_from') and '://' not in cfg.load_from:
        check_checkpoint(cfg.load_from, args.trust_checkpoint)
    hooks = cfg.setdefault('default_hooks', {})
    saving = hooks.setdefault('checkpoint', dict(type='CheckpointHook'))
    # None is a job that shall keep nothing.
    if saving is not None and saving['type'] == 'CheckpointHook':
        saving['type'] = 'mmstepnet.DurableCheckpointHook'


def main() -> None:
    args = parse_args()
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
    with process_group(cfg), named_data():
        build_runner(cfg).train()


if __name__ == '__main__':
    main()
