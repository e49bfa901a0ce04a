"""What the command-line tools share: arguments, config, process group."""

import gc
import inspect
import os
import os.path as osp
import re
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

import torch
import torch.distributed as dist
from mmengine.config import Config, ConfigDict, DictAction
from mmengine.registry import RUNNERS, init_default_scope
from mmengine.runner import Runner

from mmstepnet.compatibility import VERSIONS, check_hosts

from .patches import FetchError
from .safe_load import TRUST_FLAG

RUNNER_KEYS = (*inspect.signature(Runner).parameters,
               'activation_checkpointing', 'compile', 'efficient_conv_bn_eval',
               'find_unused_parameters', 'model_wrapper_cfg', 'runner_type',
               'strategy', 'sync_bn')
"""What mmengine's runners read of a config."""

LET_GO = 1.0
"""Seconds without the GIL for the threads of a process group."""


def add_job_arguments(parser: ArgumentParser) -> None:
    """Add the arguments that training and testing have in common."""
    parser.add_argument('config', help='config file')
    parser.add_argument(
        '--work-dir', help='where logs and results go; default: '
        './work_dirs/NAME_OF_THE_CONFIG')
    _add_options(parser, 'train_dataloader.batch_size=4 '
                 'optim_wrapper.optimizer.lr=0.1')
    parser.add_argument(
        '--launcher', choices=['none', 'pytorch', 'slurm', 'mpi'],
        default='none',
        help='how the processes of a distributed job are started')
    add_trust_argument(parser)
    # torch.distributed.launch passes the one or the other spelling.
    parser.add_argument('--local_rank', '--local-rank', type=int, default=0)


def add_config_options(parser: ArgumentParser, example: str = '') -> None:
    """Add what a tool takes that reads a config and is no job.

    Args:
        parser (ArgumentParser): Its parser.
        example (str): Of ``--cfg-options``, for the help. Defaults to none.
    """
    _add_options(parser, example)
    add_trust_argument(parser)
    parser.set_defaults(work_dir=None, launcher='none', local_rank=0)


def _add_options(parser: ArgumentParser, example: str) -> None:
    parser.add_argument(
        '--cfg-options', nargs='+', action=KeyValueAction,
        help='settings that override the config, as key=value pairs'
        + (example and f', for example {example}'))


KEPT_BLANK = '\0'
"""Stands for a blank while mmengine, which takes blanks out, reads a value."""


def _restore_blanks(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace(KEPT_BLANK, ' ')
    if isinstance(value, list | tuple):
        return type(value)(_restore_blanks(part) for part in value)
    return value


class KeyValueAction(DictAction):
    """mmengine's action, with argparse's error for what is no pair.

    Blanks within a value stay, as in names of files.
    """

    def __call__(self, parser, namespace, values, option_string=None):
        for pair in values:
            if not pair.partition('=')[0] or '=' not in pair:
                parser.error(f'argument {option_string}: expected key=value, '
                             f'got {pair!r}')
        super().__call__(parser, namespace, values, option_string)

    @staticmethod
    def _parse_iterable(val: str) -> Any:
        # Blanks beside commas, at ends and within brackets' are layout.
        val = re.sub(r'^ +| +$|(?<=[,(\[]) +| +(?=[,)\]])', '',
                     val.strip('\'"'))
        value = DictAction._parse_iterable(val.replace(' ', KEPT_BLANK))
        return _restore_blanks(value)


def add_trust_argument(parser: ArgumentParser) -> None:
    """Add the flag that allows checkpoints to run code."""
    parser.add_argument(
        TRUST_FLAG, action='store_true',
        help='let checkpoints run the code that they name when they are '
        'read; by default they are read as data and others are refused')


def load_config(args: Namespace) -> Config:
    """Read the config and apply the command line to it.

    Data loaders of an MMPretrain config get that host's defaults, which its
    own tools set and its configs rely on.

    Raises:
        ValueError: The config cannot be read, or an option of the command
            line has no effect.
        ImportError: Its host is missing or cannot be imported here.
    """
    os.environ.setdefault('LOCAL_RANK', str(args.local_rank))
    try:
        cfg = Config.fromfile(args.config)
    except FileNotFoundError:
        raise
    except (OSError, SyntaxError) as error:
        raise ValueError(f'config {args.config!r}, or one that it is based '
                         f'on, cannot be read: {error}') from error
    host = find_host(cfg)
    if host in VERSIONS:
        check_hosts(host)
    if host == 'mmpretrain':
        for name in ('train', 'val', 'test'):
            _set_mmpretrain_defaults(cfg.get(f'{name}_dataloader'))
    if args.cfg_options is not None:
        _check_options(cfg, args.cfg_options)
        cfg.merge_from_dict(args.cfg_options)
    cfg.launcher = args.launcher
    if args.work_dir is not None:
        cfg.work_dir = args.work_dir
    elif cfg.get('work_dir') is None:
        name = osp.splitext(osp.basename(args.config))[0]
        cfg.work_dir = osp.join('work_dirs', name)
    return cfg


def init_scope(cfg: Config) -> None:
    """Look up names where the config's runner will.

    Configs that name classes may set ``default_scope=None``: a name in them
    is then looked up in the registry of who asks.
    """
    scope = cfg.get('default_scope', 'mmengine')
    if scope is not None:
        init_default_scope(scope)


def find_host(cfg: Config) -> str | None:
    """The package that a config is of, such as ``'mmdet'``.

    Where ``default_scope`` does not say it, that of the model's class.
    """
    scope = cfg.get('default_scope')
    if scope not in (None, 'mmengine') or not cfg.get('model'):
        return scope
    kind = cfg.model['type']
    name = kind if isinstance(kind, str) else kind.__module__
    return name.partition('.')[0]


def _check_options(cfg: Config, options: dict) -> None:
    """Refuse names that no runner reads.

    A misspelling behind the first dot becomes an unknown argument of what is
    built, which is refused there.
    """
    for option in options:
        name = option.partition('.')[0]
        if name in RUNNER_KEYS:
            continue
        if name in cfg:
            # A variable: what was made of it is made already.
            made = [key for part in RUNNER_KEYS if part in cfg
                    for key in _places(cfg[part], cfg[name], part)][:5]
            raise ValueError(
                f'--cfg-options {option}: no runner reads {name!r}, a '
                f'variable of {cfg.filename}; ' +
                (f'set what has its value: {", ".join(made)}' if made else
                 'set what was made of it'))
        close = get_close_matches(name, RUNNER_KEYS, 1)
        raise ValueError(
            f'--cfg-options {option}: {cfg.filename} has no {name!r}, '
            'and no runner reads it' +
            (f'; did you mean {close[0]!r}?' if close else ''))


def _places(node: Any, value: Any, path: str) -> Iterator[str]:
    """Paths of a value in a config."""
    if type(node) is type(value) and node == value:
        yield path
    elif isinstance(node, dict):
        for key, child in node.items():
            yield from _places(child, value, f'{path}.{key}')
    elif isinstance(node, list | tuple):
        for i, child in enumerate(node):
            yield from _places(child, value, f'{path}.{i}')


def _set_mmpretrain_defaults(dataloader: ConfigDict | None) -> None:
    if dataloader is None:
        return
    dataloader.setdefault('collate_fn', dict(type='default_collate'))
    dataloader.setdefault('pin_memory', torch.cuda.is_available())
    dataloader.setdefault('persistent_workers',
                          dataloader.get('num_workers', 0) > 0)


def add_hooks(cfg: Config, *names: str) -> None:
    """Add hooks of ours to the config, each once.

    Args:
        cfg (Config): The job's config.
        *names (str): Names of their classes.
    """
    hooks = list(cfg.get('custom_hooks') or [])
    present = [hook.get('type') for hook in hooks if isinstance(hook, dict)]
    cfg.custom_hooks = hooks + [
        dict(type=f'mmstepnet.{name}') for name in names
        if f'mmstepnet.{name}' not in present
    ]


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
            type='MMDistributedDataParallel', device_ids=None,
            broadcast_buffers=False,
            find_unused_parameters=cfg.get('find_unused_parameters', False))
    yield
    if dist.is_initialized():
        end_process_group()


@contextmanager
def named_weights(cfg: Config) -> Iterator[None]:
    """Say which key of the config names weights that cannot be fetched.

    Raises:
        FetchError: They could not.
    """
    try:
        yield
    except FetchError as error:
        keys = [key for part in cfg
                for key in _places(cfg[part], error.name, part)]
        if not keys:
            raise
        raise FetchError(f'{", ".join(keys)} = {error.name!r}: {error}',
                         error.name) from error


def end_process_group() -> None:
    """Destroy the process group, with its threads.

    A thread of gloo's needs the GIL to let go of a tensor that it has sent.
    If it still holds one when the interpreter goes, it aborts a job that has
    succeeded (``terminate called without an active exception``, PyTorch issue
    190489); if it does when the group is destroyed, PyTorch 2.1 waits for it
    with the GIL held, for ever.
    """
    if 'gloo' in dist.get_backend():
        time.sleep(LET_GO)
    dist.destroy_process_group()
    gc.collect()  # of the runner, whose wrapped model holds the group


def build_runner(cfg: Config) -> Runner:
    """Build mmengine's runner, or the one that the config names."""
    if 'runner_type' in cfg:
        return RUNNERS.build(cfg)
    return Runner.from_cfg(cfg)
