"""The common parts of the tools: arguments, config, process group."""

import gc
import os
import os.path as osp
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
import torch.nn as nn
from mmengine.config import Config, DictAction
from mmengine.config.utils import MODULE2PACKAGE
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import CheckpointLoader

from .checkpoint import TRUST_FLAG, load_weights, patch_reading


def add_config_options(parser: ArgumentParser) -> None:
    """Add what every tool takes that reads a config and a checkpoint."""
    parser.add_argument('config', help='config file')
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=DictAction,
        default={},
        help='settings that override the config, such as '
        'train_dataloader.batch_size=4 optim_wrapper.optimizer.lr=0.1',
    )
    parser.add_argument(
        TRUST_FLAG,
        action='store_true',
        help='let checkpoints run the code that they name; by default they '
        'are read as data, and others are refused',
    )
    parser.set_defaults(work_dir=None, launcher='none', local_rank='0')


def add_job_options(parser: ArgumentParser) -> None:
    """Add the arguments that training and testing have in common."""
    add_config_options(parser)
    parser.add_argument(
        '--work-dir',
        help='folder of logs and results; '
        'default: ./work_dirs/NAME_OF_THE_CONFIG',
    )
    parser.add_argument(
        '--launcher',
        help='what starts the processes',
        choices=['none', 'pytorch', 'slurm', 'mpi'],
    )
    # torch.distributed.launch passes the one or the other spelling.
    parser.add_argument('--local_rank', '--local-rank')


def load_config(args: Namespace) -> Config:
    """Read the config, apply the command line, add the hooks that check.

    From then on checkpoints are read as data, see :func:`patch_reading`. Data
    loaders of an MMPretrain config get that host's defaults, which its
    own tools set and its configs rely on.

    Raises:
        SystemExit: There is no such file.
    """
    if not osp.isfile(args.config):
        raise SystemExit(f'there is no config file {args.config!r}')
    patch_reading(args.trust_checkpoint)
    os.environ.setdefault('LOCAL_RANK', args.local_rank)
    # Of MMSegmentation onedl-mmengine knows upstream's name alone.
    MODULE2PACKAGE['mmseg'] = 'mmseg'
    cfg = Config.fromfile(args.config)
    host = host_of_config(cfg)
    for name in ('train', 'val', 'test'):
        loader = cfg.get(f'{name}_dataloader')
        if host == 'mmpretrain' and loader is not None:
            loader.setdefault('collate_fn', dict(type='default_collate'))
            loader.setdefault('pin_memory', torch.cuda.is_available())
            loader.setdefault(
                'persistent_workers', loader.get('num_workers', 0) > 0
            )
    cfg.merge_from_dict(args.cfg_options)
    cfg.custom_hooks = [
        *(cfg.get('custom_hooks') or []),
        dict(type='mmstepnet.DataCheckHook'),
        dict(type='mmstepnet.GateCheckHook'),
    ]
    cfg.launcher = args.launcher
    name = osp.splitext(osp.basename(args.config))[0]
    cfg.work_dir = (
        args.work_dir or cfg.get('work_dir') or osp.join('work_dirs', name)
    )
    return cfg


def load_model(args: Namespace) -> tuple[Config, dict, nn.Module]:
    """The config, the checkpoint, and the model of both, on the CPU."""
    cfg = load_config(args)
    checkpoint = CheckpointLoader.load_checkpoint(args.checkpoint, 'cpu')
    if cfg.get('default_scope'):  # None in configs that name classes
        init_default_scope(cfg.default_scope)
    if cfg.get('data_preprocessor'):
        cfg.model.setdefault('data_preprocessor', cfg.data_preprocessor)
    model = MODELS.build(cfg.model)
    load_weights(model, checkpoint, args.checkpoint)
    return cfg, checkpoint, model


def host_of_config(cfg: Config) -> str | None:
    """The package that a config is of, such as ``'mmdet'``.

    Where ``default_scope`` does not say it, that of the model's class.
    """
    scope = cfg.get('default_scope')
    if scope not in (None, 'mmengine') or not cfg.get('model'):
        return scope
    kind = cfg.model['type']
    name = kind if isinstance(kind, str) else kind.__module__
    return name.partition('.')[0]


@contextmanager
def process_group(cfg: Config) -> Iterator[None]:
    """Start gloo where mmengine cannot, and end any process group in time.

    mmengine calls ``torch.cuda.set_device`` for the ``pytorch`` launcher in
    any case, and gives DistributedDataParallel a device list, which refuses
    it on CPU. It does not end a group. A job that fails leaves it as it is:
    others may be waiting in it.
    """
    if cfg.launcher == 'pytorch' and not torch.cuda.is_available():
        dist.init_process_group('gloo')
        cfg.model_wrapper_cfg = dict(
            type='MMDistributedDataParallel',
            device_ids=None,
            broadcast_buffers=False,
            find_unused_parameters=cfg.get('find_unused_parameters', False),
        )
    yield
    if dist.is_initialized():
        # A thread of gloo's needs the GIL to let go of a tensor that it has
        # sent. With one in its hands, the interpreter's end aborts the job
        # (PyTorch issue 190489), and PyTorch 2.1 never ends the group.
        time.sleep(1)
        dist.destroy_process_group()
        gc.collect()  # of the runner, whose wrapped model holds the group
