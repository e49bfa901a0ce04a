"""What ``tools/train.py`` does."""

from argparse import Namespace

from mmengine.config import Config
from mmengine.hooks import CheckpointHook
from mmengine.registry import HOOKS
from mmengine.runner import Runner, find_latest_checkpoint

from .config_check import check_data, check_weights
from .job import load_config, run_job


def train(args: Namespace) -> None:
    """Train the config of a command line."""
    cfg = load_config(args)
    apply(args, cfg)
    cfg.custom_hooks.append(dict(type='mmstepnet.LoadCheckHook'))
    check_weights(cfg)
    check_data(cfg, 'train', 'val')
    run_job(cfg, Runner.train)


def apply(args: Namespace, cfg: Config) -> None:
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
