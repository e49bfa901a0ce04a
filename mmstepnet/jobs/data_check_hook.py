"""A look at a job's data sets before the first iteration."""

import os.path as osp
import re
from collections.abc import Iterable, Iterator

import torch.nn as nn
from mmengine.fileio import load
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch.utils.data import DataLoader, Dataset

from mmstepnet.registry import HOOKS
from mmstepnet.steps.finding import unwrap

CLASS_HEAD = re.compile(r'head|(roi_head\.)?(bbox|mask)_head(\.\d+)?')
"""Names of a model's parts that have an output for each class."""


@HOOKS.register_module()
class DataCheckHook(Hook):
    """Refuse data sets whose classes or pictures are not the model's.

    The hosts would train on without a message: MMDetection numbers the
    classes that a COCO file has and drops the boxes of all others, and
    MMPretrain numbers folders in their own order. ``tools/train.py`` and
    ``tools/test.py`` add the hook.
    """

    priority = 'VERY_HIGH'  # before any that reads the data

    def before_train(self, runner: Runner) -> None:
        """Look at the training and the validation data."""
        self._check(runner, runner.train_dataloader, 'train')
        if runner.val_loop is not None:
            self._check(runner, runner.val_dataloader, 'val')

    def before_test(self, runner: Runner) -> None:
        """Look at the test data."""
        self._check(runner, runner.test_dataloader, 'test')

    def _check(self, runner: Runner, loader: DataLoader, split: str) -> None:
        for dataset in _parts(loader.dataset):
            for check in (wrong_categories, wrong_order, wrong_heads,
                          missing_pictures):
                problem = check(dataset, unwrap(runner.model))
                if problem is not None:
                    source = getattr(dataset, 'ann_file', '') or getattr(
                        dataset, 'data_root', '')
                    raise ValueError(f'the {split} data set {source} '
                                     f'{problem}')


def wrong_categories(dataset: Dataset, model: nn.Module) -> str | None:
    """Say which classes a file in COCO format lacks."""
    names = _classes(dataset)
    if len(getattr(dataset, 'cat_ids', names)) == len(names):
        return None
    content = load(dataset.ann_file, backend_args=dataset.backend_args)
    there = [category['name'] for category in content['categories']]
    return (f'lacks the classes {_listed(set(names) - set(there))}; its '
            f'"categories" are {_listed(there)}. Correct them, or '
            'metainfo.classes of the data set')


def wrong_order(dataset: Dataset, model: nn.Module) -> str | None:
    """Say where classes are in another order than MMPretrain's folders."""
    folders = list(getattr(dataset, 'folder_to_idx', ()))
    names = _classes(dataset)
    if names == folders or {*names} != {*folders}:
        return None
    return (f'has the folders {_listed(folders)}, and its classes are in '
            f'another order, {_listed(names)}: write them in that of the '
            'folders')


def wrong_heads(dataset: Dataset, model: nn.Module) -> str | None:
    """Say which head has another number of classes."""
    names = dataset.metainfo.get('thing_classes') or _classes(dataset)
    if not names or hasattr(model, 'language_model'):
        return None
    for name, head in model.named_modules():
        found = getattr(head, 'num_classes', None)
        # A classifier may be tested on a part of its classes.
        if (CLASS_HEAD.fullmatch(name) and isinstance(found, int)
                and (found < len(names) or found > len(names)
                     and name != 'head')
                and not getattr(head, 'class_agnostic', False)):
            return (f'has the {len(names)} classes {_listed(names)}, and '
                    f'model.{name} has num_classes={found}; set that, or '
                    'metainfo.classes of the data set')
    return None


def missing_pictures(dataset: Dataset, model: nn.Module) -> str | None:
    """Name the first picture, if neither it nor the last one is there."""
    if getattr(dataset, 'backend_args', None):
        return None
    paths = [dataset.get_data_info(i).get('img_path')
             for i in (0, len(dataset) - 1)]
    if any(not isinstance(path, str) or '://' in path or osp.exists(path)
           for path in paths):
        return None
    return (f'names the picture {paths[0]!r}, which is not there; set '
            'data_root or data_prefix of the data set')


def _classes(dataset: Dataset) -> list[str]:
    return list(dataset.metainfo.get('classes') or ())


def _listed(names: Iterable[str]) -> str:
    """Some names, of which blanks at the ends are seen."""
    return ', '.join(map(repr, list(names)[:20]))


def _parts(dataset: Dataset) -> Iterator[Dataset]:
    """Yield mmengine's data sets below wrappers such as RepeatDataset."""
    for part in getattr(dataset, 'datasets', ()):
        yield from _parts(part)
    if hasattr(dataset, 'dataset'):
        yield from _parts(dataset.dataset)
    elif hasattr(dataset, 'get_data_info') and len(dataset):
        yield dataset
