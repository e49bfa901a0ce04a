"""The common parts of the tools: config, model, runner, process group."""

import gc
import logging
import os
import os.path as osp
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
import torch.nn as nn
from mmengine.config import Config, DictAction
from mmengine.config.utils import MODULE2PACKAGE, ConfigParsingError
from mmengine.logging import MMLogger
from mmengine.registry import MODELS, RUNNERS, init_default_scope
from mmengine.runner import CheckpointLoader, Runner

from mmstepnet.cli.wording import in_one_line, is_of_the_internet

from .checkpoint import load_weights, patch_reading
from .config_check import check_attentions
from .data_check_hook import DataCheckHook


def load_config(args: Namespace) -> Config:
    """Read the config, apply the command line, add the hooks that check.

    From then on checkpoints are read as data, see :func:`patch_reading`. Data
    loaders of an MMPretrain config get that host's defaults, which its
    own tools set and its configs rely on.

    Raises:
        SystemExit: A config below it is not there or cannot be read, or
            names an unknown attention.
    """
    patch_reading(args.trust_checkpoint)
    os.environ.setdefault('LOCAL_RANK', args.local_rank)
    # Of MMSegmentation onedl-mmengine knows upstream's name alone.
    MODULE2PACKAGE['mmseg'] = 'mmseg'
    try:
        cfg = Config.fromfile(args.config)
    except (OSError, SyntaxError, ImportError, ConfigParsingError) as error:
        raise SystemExit(f'{args.config}: {in_one_line(error)}') from error
    host = host_of_config(cfg)
    for name in ('train', 'val', 'test'):
        loader = cfg.get(f'{name}_dataloader')
        if host == 'mmpretrain' and loader is not None:
            loader.setdefault('collate_fn', dict(type='default_collate'))
            loader.setdefault('pin_memory', torch.cuda.is_available())
            loader.setdefault(
                'persistent_workers', loader.get('num_workers', 0) > 0
            )
    given = Namespace()
    DictAction([], 'settings')(None, given, args.cfg_options)
    cfg.merge_from_dict(given.settings)
    check_attentions(cfg)
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


def run_job(cfg: Config, work: Callable[[Runner], Any]) -> None:
    """Build a runner and let it work.

    What is refused before the first batch, by us or by the host, is one line
    on the terminal, and its frames are in the job's log.

    Args:
        cfg (Config): The config of the job.
        work (Callable): What is done with the runner.

    Raises:
        SystemExit: The job is refused; the line is its text.
    """
    runner = None
    with process_group(cfg):
        try:
            runner = RUNNERS.build(cfg)
            work(runner)
        except Exception as error:
            log = _log_file(cfg)
            if log is None or _has_begun(runner):
                raise
            _refuse(error, log)


def _has_begun(runner: Runner | None) -> bool:
    """Whether a job has come to its first batch."""
    return runner is not None and any(
        isinstance(hook, DataCheckHook) and hook.has_looked
        for hook in runner.hooks
    )


def _log_file(cfg: Config) -> logging.FileHandler | None:
    """What writes the log of a job, None before there is one."""
    folder = Path(cfg.work_dir).resolve()
    for handler in MMLogger.get_current_instance().handlers:
        if isinstance(handler, logging.FileHandler):
            if folder in Path(handler.baseFilename).parents:
                return handler
    return None


def _refuse(error: Exception, log: logging.FileHandler) -> NoReturn:
    """Write the frames into the log, and end in one line."""
    text = in_one_line(error)
    if is_of_the_internet(error):
        text = (
            f'the internet is not reached ({text}); fetch the file elsewhere '
            f'and name it, as by --cfg-options '
            f'model.backbone.init_cfg.checkpoint=FILE'
        )
    log.handle(
        logging.LogRecord(
            'mmengine', logging.ERROR, __file__, 0, text, (), sys.exc_info()
        )
    )
    raise SystemExit(text) from error


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
