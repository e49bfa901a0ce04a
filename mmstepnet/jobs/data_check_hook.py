"""A look at a job's data sets before the first iteration."""

import os.path as osp
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import torch.nn as nn
from mmengine.fileio import load
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch.utils.data import DataLoader, Dataset

from mmstepnet.registry import HOOKS
from mmstepnet.tracing import unwrap

CLASS_HEAD = re.compile(r'head|(roi_head\.)?(bbox|mask)_head(\.\d+)?')
"""Names of a model's parts that have an output for each class."""

COCO_IDS = [
    k
    for k in range(1, 91)
    if k not in (12, 26, 29, 30, 45, 66, 68, 69, 71, 83)
]
"""Numbers of COCO's 80 categories, in the order of its files."""


@HOOKS.register_module()
class DataCheckHook(Hook):
    """Refuse data sets whose classes or pictures are not the model's.

    The hosts would train on without a message: MMDetection drops the boxes of
    classes that a COCO file lacks, and both hosts number categories and
    folders in the order of these. What may be meant is a warning, see
    :func:`doubts`. ``tools/train.py`` and ``tools/test.py`` add the hook.
    """

    priority = 'VERY_HIGH'  # before any that reads the data

    has_looked = False
    """Whether all is found to be in order, and batches come next."""

    def before_train(self, runner: Runner) -> None:
        """Look at the training and the validation data."""
        self._check(runner, runner.train_dataloader, 'train')
        told = {
            f'the train data set {_source(dataset)} {doubt}': None
            for dataset in _parts(runner.train_dataloader.dataset)
            for doubt in doubts(dataset, unwrap(runner.model))
        }
        for text in told:  # once, though a data set may be joined to itself
            runner.logger.warning(text)
        if runner.val_loop is not None:
            self._check(runner, runner.val_dataloader, 'val')
        self.has_looked = True

    def before_test(self, runner: Runner) -> None:
        """Look at the test data."""
        self._check(runner, runner.test_dataloader, 'test')
        self.has_looked = True

    def _check(self, runner: Runner, loader: DataLoader, split: str) -> None:
        for dataset in _parts(loader.dataset):
            for problem in problems(dataset, unwrap(runner.model)):
                raise ValueError(
                    f'the {split} data set {_source(dataset)} {problem}'
                )


def problems(dataset: Dataset, model: nn.Module) -> Iterator[str]:
    """Say what of a data set is not the model's.

    Classes that are one text, classes that a file in COCO format lacks or has
    twice, classes in another order than its categories or than MMPretrain's
    folders, a head of another number of classes, and pictures of which
    neither the first nor the last is there.
    """
    given = dataset.metainfo.get('classes') or ()
    if isinstance(given, str):
        yield (
            f'has metainfo.classes={given!r}, whose letters would be the '
            f'classes: write ({given!r}, )'
        )
        return
    names = list(given)
    kind = 'folders'
    there = list(getattr(dataset, 'folder_to_idx', ()))
    if hasattr(dataset, 'cat_ids') and not _is_hosts_own(dataset, names):
        content = load(dataset.ann_file, backend_args=dataset.backend_args)
        kind = 'categories'
        numbers = defaultdict(list)
        for category in content['categories']:
            numbers[category['name']].append(category['id'])
        there = list(numbers)
        for name, ids in numbers.items():
            if name in names and len(ids) > 1:
                yield (
                    f'has {"two" if len(ids) == 2 else len(ids)} '
                    f'categories called {name!r} (ids '
                    f'{", ".join(map(str, ids))}): merge them in the file'
                )
        if lacking := {*names} - {*there}:
            yield (
                f'lacks the classes {_listed(lacking)}; its "categories" '
                f'are {_listed(there)}. Correct them, or metainfo.classes '
                f'of the data set'
            )
    there = [name for name in there if name in names]
    if names != there and {*names} == {*there}:
        yield (
            f'has the {kind} {_listed(there)}, and its classes are in '
            f'another order, {_listed(names)}: write them in that of the '
            f'{kind}'
        )
    for name, is_larger, text in _other_heads(dataset, names, model):
        # A classifier may be tested on a part of its classes.
        if name != 'head' or not is_larger:
            yield text
    paths = [
        dataset.get_data_info(i).get('img_path') for i in (0, len(dataset) - 1)
    ]
    if not getattr(dataset, 'backend_args', None) and all(
        isinstance(path, str) and '://' not in path and not osp.exists(path)
        for path in paths
    ):
        yield (
            f'names the picture {paths[0]!r}, which is not there; set '
            'data_root or data_prefix of the data set'
        )


def doubts(dataset: Dataset, model: nn.Module) -> Iterator[str]:
    """Say what of a training's data set is meant in few cases alone.

    A classifier's head of more classes, and classes of which some, not all,
    are called as MMPretrain's folders are.
    """
    names = list(dataset.metainfo.get('classes') or ())
    for name, is_larger, text in _other_heads(dataset, names, model):
        if name == 'head' and is_larger:
            yield f'{text}, unless more outputs than classes are meant'
    there = list(getattr(dataset, 'folder_to_idx', ()))
    folders = [name for name in there if name not in names]
    classes = [name for name in names if name not in there]
    if classes and len(classes) < len(names) and len(names) == len(there):
        yield (
            f'has the folders {_listed(folders)}, and where its classes '
            f'should name them, {_listed(classes)}: write them as the folders '
            f'are called, because the order of other names is not looked at'
        )


def _other_heads(
    dataset: Dataset, names: list[str], model: nn.Module
) -> Iterator[tuple[str, bool, str]]:
    """Yield heads of another number of classes.

    Yields:
        tuple[str, bool, str]: The name, whether it has more classes than the
        data set, and a sentence.
    """
    things = dataset.metainfo.get('thing_classes') or names
    for name, head in model.named_modules():
        found = getattr(head, 'num_classes', None)
        if (
            things
            and CLASS_HEAD.fullmatch(name)
            and isinstance(found, int)
            and found != len(things)
            and not getattr(head, 'class_agnostic', False)
            and not hasattr(model, 'language_model')
        ):
            yield (
                name,
                found > len(things),
                f'has the {len(things)} classes {_listed(things)}, and '
                f'model.{name} has num_classes={found}; set that, or '
                'metainfo.classes of the data set',
            )


def _source(dataset: Dataset) -> str:
    """Where a data set comes from, for messages."""
    return getattr(dataset, 'ann_file', '') or getattr(
        dataset, 'data_root', ''
    )


def _is_hosts_own(dataset: Any, names: list[str]) -> bool:
    """Whether a class of MMDetection reads its own files, which are large.

    Its classes are in the order of these. Files of the user's own are often
    read by ``CocoDataset``, so there the numbers of the categories decide.
    """
    cls = type(dataset)
    return (
        cls.__module__.startswith('mmdet.')
        and len(dataset.cat_ids) == len(names)
        and names == list(dataset.METAINFO.get('classes', ()))
        and (
            cls.__name__ != 'CocoDataset' or list(dataset.cat_ids) == COCO_IDS
        )
    )


def _listed(names: Iterable[str]) -> str:
    """Some names, of which blanks at the ends are seen."""
    return ', '.join(map(repr, list(names)[:20]))


def _parts(dataset: Dataset) -> Iterator[Dataset]:
    """Yield mmengine's data sets below wrappers such as RepeatDataset."""
    if hasattr(dataset, 'datasets'):
        for part in dataset.datasets:
            yield from _parts(part)
    elif hasattr(dataset, 'dataset'):
        yield from _parts(dataset.dataset)
    elif hasattr(dataset, 'get_data_info') and len(dataset):
        yield dataset
