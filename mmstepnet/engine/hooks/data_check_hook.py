"""A look at a job's data sets once they are loaded."""

from collections.abc import Iterator, Sized
from numbers import Integral

import numpy as np
import torch.nn as nn
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.runner import EpochBasedTrainLoop, Runner
from torch.utils.data import DataLoader, Dataset

from mmstepnet.registry import HOOKS
from mmstepnet.steps import ResidualStep


@HOOKS.register_module()
class DataCheckHook(Hook):
    """Refuse data sets that the hosts would train or test on in vain.

    - An empty one, all annotations filtered out: mmengine divides by zero, or
      finishes without an iteration.
    - A last training batch of one image, under gates that normalise over
      the batch: they would end the job with its first epoch.
    - Labels of an MMPretrain data set beyond the head's classes: the loss
      fails within an epoch, on a GPU without saying why.
    - An MMDetection data set in COCO format whose file lacks classes: the
      host numbers those that are there, so that labels mean other classes,
      or drops all annotations.

    ``tools/train.py`` and ``tools/test.py`` add the hook.
    """

    priority = 'VERY_HIGH'  # before any that reads the data

    def before_train(self, runner: Runner) -> None:
        """Look at the training and the validation data."""
        self._check(runner, 'train')
        if isinstance(runner.train_loop, EpochBasedTrainLoop):
            check_last_batch(runner.train_dataloader, runner.model)
        if runner.val_loop is not None:
            self._check(runner, 'val')

    def before_test(self, runner: Runner) -> None:
        """Look at the test data."""
        self._check(runner, 'test')

    def _check(self, runner: Runner, split: str) -> None:
        model = runner.model
        if is_model_wrapper(model):
            model = model.module
        classes = getattr(getattr(model, 'head', None), 'num_classes', None)
        loader = getattr(runner, f'{split}_dataloader')
        check_not_empty(loader.dataset, split)
        for dataset in _parts(loader.dataset):
            check_categories(dataset, split)
            if classes is not None:
                check_labels(dataset, classes, split)


def check_not_empty(dataset: Dataset, split: str) -> None:
    """Refuse a data set without samples.

    Args:
        dataset (Dataset): The data set.
        split (str): What the message calls it.

    Raises:
        ValueError: It is empty.
    """
    if hasattr(dataset, '__len__') and len(dataset) == 0:
        raise ValueError(f'the {split} data set{_source(dataset)} has no '
                         'samples, or filter_cfg filters all of them out')


def check_last_batch(loader: DataLoader, model: nn.Module) -> None:
    """Refuse a last batch of one image where gates need two.

    Args:
        loader (DataLoader): The training data's.
        model (nn.Module): What is trained, left in training mode.

    Raises:
        ValueError: A gate normalises one vector an image over the batch, and
            the last batch of an epoch has one image a process.
    """
    size = loader.batch_size  # None where a sampler makes the batches
    if (not size or loader.drop_last or not isinstance(loader.sampler, Sized)
            or len(loader.sampler) % size != 1):
        return
    model.train()
    for name, step in model.named_modules():
        if isinstance(step, ResidualStep) and any(
                type(part) is nn.BatchNorm1d and part.training
                for part in step.modules()):
            raise ValueError(
                f'the last training batch of an epoch has one of the '
                f'{len(loader.sampler)} images of a process, and the gate of '
                f'{name} normalises over the batch; set '
                f'train_dataloader.drop_last=True or another batch_size')


def check_categories(dataset: Dataset, split: str) -> None:
    """Refuse an annotation file in COCO format that lacks classes.

    Args:
        dataset (Dataset): Others than those of MMDetection pass.
        split (str): What the message calls it.

    Raises:
        ValueError: The file has not as many of the classes as the data set.
    """
    found = getattr(dataset, 'cat_ids', None)
    names = getattr(dataset, 'metainfo', {}).get('classes')
    if found is not None and names and len(found) != len(names):
        raise ValueError(
            f'the {split} data set{_source(dataset)} has {len(found)} of the '
            f'{len(names)} classes {", ".join(names[:10])}'
            f'{", ..." if len(names) > 10 else ""}: its "categories" must '
            'name each of them; correct them, or metainfo.classes of the '
            'data set')


def check_labels(dataset: Dataset, classes: int, split: str) -> None:
    """Refuse labels that the head of a classifier has not.

    Args:
        dataset (Dataset): Others than those of MMPretrain pass.
        classes (int): Number of classes.
        split (str): What the message calls it.

    Raises:
        ValueError: A label is not from 0 to ``classes`` - 1.
    """
    # Test data may have no labels, others several a sample.
    if not (hasattr(dataset, 'get_gt_labels') and isinstance(
            dataset.get_data_info(0).get('gt_label'), Integral)):
        return
    labels = dataset.get_gt_labels()
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        index = int(wrong[0])
        sample = dataset.get_data_info(index).get('img_path', 'sample')
        raise ValueError(
            f'the {split} data set{_source(dataset)} has label '
            f'{labels[index]} at {sample} (number {index}), and {len(wrong)} '
            f'such in all; the head has num_classes={classes}, labels from 0 '
            f'to {classes - 1}. Correct the labels or model.head.num_classes')


def _parts(dataset: Dataset) -> Iterator[Dataset]:
    """Yield the data sets below wrappers such as RepeatDataset."""
    if hasattr(dataset, 'datasets'):
        for part in dataset.datasets:
            yield from _parts(part)
    elif hasattr(dataset, 'dataset'):
        yield from _parts(dataset.dataset)
    else:
        yield dataset


def _source(dataset: Dataset) -> str:
    source = getattr(dataset, 'ann_file', '') or getattr(
        dataset, 'data_root', '')
    return f' of {source}' if source else ''
