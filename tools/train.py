"""Train any config of an OpenMMLab host, ours among them."""

import argparse

from mmengine.config import Config
from mmengine.hooks import CheckpointHook
from mmengine.registry import HOOKS, RUNNERS
from mmengine.runner import find_latest_checkpoint

from mmstepnet.jobs.job import add_job_options, load_config, process_group


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add_job_options(parser)
    parser.add_argument(
        '--amp', action='store_true', help='automatic mixed precision'
    )
    parser.add_argument(
        '--auto-scale-lr',
        action='store_true',
        help="scale the learning rate by this job's batch size over "
        'auto_scale_lr.base_batch_size of the config',
    )
    parser.add_argument(
        '--resume',
        nargs='?',
        const='auto',
        metavar='CHECKPOINT',
        help='go on from a checkpoint; without a value from the last one of '
        "the job, or from the config's load_from where there is none",
    )
    return parser.parse_args()


def apply(args: argparse.Namespace, cfg: Config) -> None:
    """Change a config as the command line says."""
    if args.amp:
        cfg.optim_wrapper.type = 'AmpOptimWrapper'
        cfg.optim_wrapper.setdefault('loss_scale', 'dynamic')
    if args.auto_scale_lr:
        cfg.auto_scale_lr.enable = True
    if args.resume == 'auto':
        last = find_latest_checkpoint(cfg.work_dir)
        if last == '':  # killed while mmengine wrote its name
            raise SystemExit(
                f'{cfg.work_dir}/last_checkpoint is empty; name '
                'the last one with --resume CHECKPOINT'
            )
        cfg.resume, cfg.load_from = bool(last), last or cfg.get('load_from')
    elif args.resume:
        cfg.resume, cfg.load_from = True, args.resume
    saving = cfg.setdefault('default_hooks', {}).setdefault(
        'checkpoint', dict(type='CheckpointHook')
    )
    # None is a job that shall keep nothing.
    if saving and (
        saving.type is CheckpointHook
        or isinstance(saving.type, str)
        and HOOKS.get(saving.type) is CheckpointHook
    ):
        saving.type = 'mmstepnet.DurableCheckpointHook'


def main() -> None:
    args = parse_args()
    cfg = load_config(args)
    apply(args, cfg)
    with process_group(cfg):
        RUNNERS.build(cfg).train()


if __name__ == '__main__':
    main()
