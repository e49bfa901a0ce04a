"""What a config alone shows to be wrong, before its host is imported."""

import os.path as osp
from collections.abc import Iterator
from typing import Any

from mmengine.config import Config

from mmstepnet.attentions import ATTENTIONS

HOSTS = 'mmdet', 'mmpretrain', 'mmseg', 'mmstepnet'
"""Scopes of data sets whose paths are joined as MMEngine's base class does."""

PICTURES = 'img', 'img_path'
"""Keys of ``data_prefix`` that name folders of pictures."""

FETCHED = 'CIFAR10', 'CIFAR100', 'FashionMNIST', 'MNIST', 'STL10'
"""Data sets that make their folder and fetch their files."""


def check_attentions(cfg: Config) -> None:
    """Refuse unknown names of attentions in our backbones.

    Raises:
        SystemExit: There is one.
    """
    for where, part in _dicts(cfg.get('model'), 'model'):
        kind, attention = part.get('type'), part.get('attention')
        if isinstance(kind, type):
            kind = kind.__module__
        is_ours = isinstance(kind, str) and kind.startswith('mmstepnet.')
        if not is_ours or not isinstance(attention, dict):
            continue
        try:
            ATTENTIONS.find(attention.get('type'))
        except KeyError as error:
            raise SystemExit(f'{where}: {error.args[0]}') from error


def check_weights(cfg: Config) -> None:
    """Refuse checkpoints that a training starts from and that are not there.

    Raises:
        SystemExit: One is not there.
    """
    named = {'load_from': cfg.get('load_from')}
    for where, part in _dicts(cfg.get('model'), 'model'):
        if part.get('type') == 'Pretrained':
            named[f'{where}.checkpoint'] = part.get('checkpoint')
    for where, path in named.items():
        if _is_local(path) and not osp.exists(osp.expanduser(path)):
            raise SystemExit(
                f'there is no checkpoint {path!r}, which {where} names; '
                f'correct it, as by --cfg-options {where}=FILE'
            )


def check_data(cfg: Config, *splits: str) -> None:
    """Refuse data sets whose folders or annotations are not there.

    Only what is known to be read by MMEngine's rule is looked at: data sets
    of the hosts, in configs that import no modules of the user's, on a local
    disk.

    Args:
        cfg (Config): The config of a job.
        *splits (str): The data loaders that the job reads, such as
            ``'train'``.

    Raises:
        SystemExit: One is not there.
    """
    if cfg.get('custom_imports'):
        return
    default = cfg.get('default_scope')
    for split in splits:
        loader = cfg.get(f'{split}_dataloader') or {}
        where = f'{split}_dataloader.dataset'
        for place, dataset in _data_sets(loader.get('dataset'), where):
            if not _is_read_by_the_rule(dataset, default):
                continue
            for key, path, is_there in _paths(dataset):
                if _is_local(path) and not is_there(osp.expanduser(path)):
                    raise SystemExit(
                        f'{path!r} is not there, which {place}.{key} names; '
                        f'correct it, as by --cfg-options {place}.{key}=PATH'
                    )


def _dicts(value: Any, where: str) -> Iterator[tuple[str, dict]]:
    """Yield the dicts in a config, and where each stands."""
    if isinstance(value, dict):
        yield where, value
        inside = value.items()
    elif isinstance(value, (list, tuple)):
        inside = enumerate(value)
    else:
        return
    for key, inner in inside:
        yield from _dicts(inner, f'{where}.{key}')


def _data_sets(value: Any, where: str) -> Iterator[tuple[str, dict]]:
    """Yield data sets below wrappers such as RepeatDataset."""
    if isinstance(value, (list, tuple)):
        for k, inner in enumerate(value):
            yield from _data_sets(inner, f'{where}.{k}')
    elif isinstance(value, dict):
        yield where, value
        for key in ('dataset', 'datasets'):
            yield from _data_sets(value.get(key), f'{where}.{key}')


def _is_read_by_the_rule(dataset: dict, default: Any) -> bool:
    """Whether its paths are joined as in MMEngine, and read from a disk.

    Args:
        dataset (dict): Of the config.
        default (str, optional): The scope of types without one.
    """
    kind = dataset.get('type')
    if isinstance(kind, type):
        kind = f'{kind.__module__.partition(".")[0]}.{kind.__name__}'
    scope, _, name = str(kind).rpartition('.')
    parts = [dataset, *(dataset.get('pipeline') or [])]
    return (
        (scope or default) in HOSTS
        and (name not in FETCHED or dataset.get('download') is False)
        and not any(part.get('backend_args') for part in parts)
    )


def _paths(dataset: dict) -> Iterator[tuple[str, str, Any]]:
    """Yield arguments that name paths, these, and how they are looked for.

    Of the prefixes those of pictures: others may name what no step of the
    pipeline reads.
    """
    root = dataset.get('data_root') or ''
    if not isinstance(root, str):
        return
    named = []
    annotations = dataset.get('ann_file')
    if annotations and isinstance(annotations, str):
        named.append(('ann_file', annotations, osp.exists))
    prefixes = dataset.get('data_prefix') or {}
    if isinstance(prefixes, str):
        named.append(('data_prefix', prefixes, osp.isdir))
    elif isinstance(prefixes, dict):
        for key in PICTURES:
            if isinstance(prefixes.get(key), str):
                named.append((f'data_prefix.{key}', prefixes[key], osp.isdir))
    is_used = not all(osp.isabs(path) for _, path, _ in named)
    if root and (is_used or not named):
        yield 'data_root', root, osp.isdir
    for key, path, is_there in named:
        yield key, _join(root, path), is_there


def _join(root: str, path: str) -> str:
    return path if '://' in path else osp.join(root, path)


def _is_local(path: Any) -> bool:
    return bool(path) and isinstance(path, str) and '://' not in path
