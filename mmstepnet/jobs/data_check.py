"""A look at a job's data before anything is built for it."""

import inspect
import os.path as osp
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import walk_tb
from types import TracebackType

from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.evaluator import BaseMetric
from mmengine.registry import DATASETS

from .job import init_scope


def check_data(cfg: Config, *loops: str) -> None:
    """Refuse a job whose data are not there.

    Args:
        cfg (Config): The job's config.
        *loops (str): Its loops, of ``'train'``, ``'val'`` and ``'test'``.

    Raises:
        FileNotFoundError: An annotation file or data root is missing; the
            message names the field of the config and how to set it.
    """
    init_scope(cfg)
    for field, path in _paths(cfg, loops):
        _check_path(field, path)


@contextmanager
def named_data() -> Iterator[None]:
    """Say which data set or metric could not be loaded, and its file.

    The hosts' errors of damaged or empty annotations name neither.

    Raises:
        ValueError: One could not.
    """
    try:
        yield
    except Exception as error:
        owner, path = _loading(error.__traceback__)
        if owner is None:
            raise
        name = type(owner).__name__ + (f' of {path}' if path else '')
        # Where mmengine joins the samples of an empty list.
        if getattr(owner, 'data_list', None) == [] and any(
                frame.f_code.co_name == '_serialize_data'
                for frame, _ in walk_tb(error.__traceback__)):
            raise ValueError(f'{name} has no samples, or indices or '
                             'filter_cfg leave none of them') from error
        if not path or path in str(error):
            raise
        raise ValueError(
            f'{name} cannot be loaded ({type(error).__name__}: {error}); '
            'look whether the file is whole and of that kind') from error


def _loading(
    traceback: TracebackType
) -> tuple[BaseDataset | BaseMetric | None, str | None]:
    """What was being loaded when an error was raised, and its file.

    The hosts build data sets and metrics deep in the runner. One whose
    constructor failed was given to nobody: the traceback alone has it.
    """
    for frame, _ in walk_tb(traceback):
        owner = frame.f_locals.get('self')
        if (frame.f_code.co_name in ('__init__', 'full_init')
                and isinstance(owner, (BaseDataset, BaseMetric))):
            path = getattr(owner, 'ann_file',
                           None) or frame.f_locals.get('ann_file')
            return owner, path
    return None, None


def _paths(cfg: Config, loops: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield field and path of each data root and annotation file."""
    for loop in loops:
        loader = cfg.get(f'{loop}_dataloader')
        if loader is None:
            continue
        for field, dataset in _datasets(f'{loop}_dataloader.dataset',
                                        loader['dataset']):
            yield from _dataset_paths(field, dataset)
        evaluators = cfg.get(f'{loop}_evaluator') or []
        if isinstance(evaluators, dict):
            evaluators = [evaluators]
        for evaluator in evaluators:
            path = evaluator.get('ann_file')
            if path and not evaluator.get('backend_args'):
                yield f'{loop}_evaluator.ann_file', path


def _datasets(field: str, dataset: dict) -> Iterator[tuple[str, dict]]:
    """Yield the data sets below wrappers such as RepeatDataset."""
    if not isinstance(dataset, dict):
        return
    if 'dataset' in dataset:
        yield from _datasets(f'{field}.dataset', dataset['dataset'])
    elif 'datasets' in dataset:
        for i, part in enumerate(dataset['datasets']):
            yield from _datasets(f'{field}.datasets.{i}', part)
    else:
        yield field, dataset


def _dataset_paths(field: str, dataset: dict) -> Iterator[tuple[str, str]]:
    root, annotations = dataset.get('data_root'), dataset.get('ann_file')
    if dataset.get('backend_args') or _downloads(dataset):
        return
    if root:
        yield f'{field}.data_root', root
    if annotations:
        yield f'{field}.ann_file', osp.join(root or '', annotations)


def _downloads(dataset: dict) -> bool:
    """Whether the data set fetches what is missing, as the host's CIFAR10."""
    cls = dataset['type']
    if isinstance(cls, str):
        with DATASETS.switch_scope_and_registry(None) as registry:
            cls = registry.get(cls)
    has_switch = inspect.isclass(cls) and 'download' in inspect.signature(
        cls.__init__).parameters
    return has_switch and dataset.get('download', True)


def _check_path(field: str, path: str) -> None:
    if '://' in path or osp.exists(path):
        return
    raise FileNotFoundError(
        f'{field}: there is no {path!r}; put the data there (a link will do) '
        f'or say where it is, for example with --cfg-options {field}=PATH')
