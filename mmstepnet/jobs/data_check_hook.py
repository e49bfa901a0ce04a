"""A look at a job's data sets once they are loaded."""

import os.path as osp
import re
from collections.abc import Iterator, Sequence, Sized
from numbers import Integral

import numpy as np
import torch.nn as nn
from mmengine.evaluator import BaseMetric
from mmengine.fileio import load
from mmengine.hooks import Hook
from mmengine.runner import EpochBasedTrainLoop, Runner
from torch.utils.data import DataLoader, Dataset

from mmstepnet.registry import HOOKS
from mmstepnet.steps import ResidualStep
from mmstepnet.steps.finding import unwrap

CLASS_HEAD = re.compile(r'(roi_head\.)?(bbox|mask)_head(\.\d+)?')
"""Names of a detector's parts that have an output for each class."""


@HOOKS.register_module()
class DataCheckHook(Hook):
    """Refuse data sets with which a job would come to nothing.

    - An empty one, all annotations filtered out: mmengine divides by zero, or
      finishes without an iteration.
    - A last training batch of one image, under gates that normalise over
      the batch: they would end the job with its first epoch.
    - Labels of an MMPretrain data set beyond the head's classes: the loss
      fails within an epoch, on a GPU without saying why.
    - Class names of an MMPretrain data set in another order than its
      folders: labels would go by each other's names.
    - An MMDetection data set in COCO format whose file lacks classes: the
      host numbers those that are there, so that labels mean other classes,
      or drops all annotations.
    - One without a single usable box, as of relative coordinates: the host
      trains on background and ends well, with mAP 0.
    - Another number of classes than the detector's heads have.
    - Annotations that COCO's evaluation cannot read, after the first epoch.
    - Images that are not in the folder that is named.

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
        model = unwrap(runner.model)
        classes = getattr(getattr(model, 'head', None), 'num_classes', None)
        loader = getattr(runner, f'{split}_dataloader')
        check_not_empty(loader.dataset, split)
        metrics = [] if split == 'train' else getattr(
            runner, f'{split}_loop').evaluator.metrics
        for metric in metrics:
            check_evaluation(metric, split)
        # A test that only writes predictions may have no boxes to compare.
        compared = not any(getattr(m, 'format_only', 0) for m in metrics)
        for dataset in _parts(loader.dataset):
            check_categories(dataset, split)
            check_order(dataset, split)
            check_images(dataset, split)
            if compared:
                check_boxes(dataset, split)
            check_heads(model, dataset, split)
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
                isinstance(part, nn.BatchNorm1d) and part.training
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
            f'data set{_spelt_otherwise(dataset, names)}')


def _spelt_otherwise(dataset: Dataset, names: Sequence[str]) -> str:
    """Say which classes a COCO file has in other letters or with blanks."""
    content = load(dataset.ann_file, backend_args=dataset.backend_args)
    written = [category['name'] for category in content['categories']]
    alike = {' '.join(str(name).lower().split()): name for name in written}
    other = [f'{name!r} is {alike[key]!r} there' for name in names
             if name not in written
             and (key := ' '.join(name.lower().split())) in alike]
    return f'; {", ".join(other[:10])}' if other else ''


def check_images(dataset: Dataset, split: str) -> None:
    """Refuse a data set whose first and last image are not there.

    Args:
        dataset (Dataset): Others than mmengine's pass.
        split (str): What the message calls it.

    Raises:
        FileNotFoundError: Neither is.
    """
    # Without a folder, or with a store, images are no files of this machine.
    folders = [folder for folder in (
        getattr(dataset, 'data_prefix', None) or {}).values() if folder]
    if not folders or getattr(dataset, 'backend_args', None):
        return
    paths = [dataset.get_data_info(i).get('img_path')
             for i in (0, len(dataset) - 1)]
    if all(isinstance(path, str) and '://' not in path
           and not osp.exists(path) for path in paths):
        raise FileNotFoundError(
            f'the {split} data set{_source(dataset)} names images that are '
            f'not there, {paths[0]!r} is the first; set data_root or '
            f'data_prefix, for example with --cfg-options '
            f'{split}_dataloader.dataset.data_prefix.img=FOLDER')


def check_boxes(dataset: Dataset, split: str) -> None:
    """Refuse a detection data set without one box to learn or to find.

    Args:
        dataset (Dataset): Others than those of MMDetection pass.
        split (str): What the message calls it.

    Raises:
        ValueError: It has none.
    """
    if not _has_instances(dataset):
        return
    for i in range(len(dataset)):
        if any(not instance.get('ignore_flag')
               for instance in dataset.get_data_info(i)['instances']):
            return
    raise ValueError(
        f'the {split} data set{_source(dataset)} has no usable box in '
        f'{len(dataset)} images: boxes are left out that are of less than a '
        'pixel (are the coordinates relative? they must be pixels, x, y, '
        'width, height), outside of the image, without "area", crowds, or of '
        'a category that is no class')


def check_heads(model: nn.Module, dataset: Dataset, split: str) -> None:
    """Refuse a detector whose heads have another number of classes.

    Args:
        model (nn.Module): What is trained or tested. Those whose classes are
            a text pass.
        dataset (Dataset): Others than those of MMDetection pass.
        split (str): What the message calls it.

    Raises:
        ValueError: Heads and data set have different numbers of classes.
    """
    metainfo = getattr(dataset, 'metainfo', {})
    names = metainfo.get('thing_classes') or metainfo.get('classes')
    if (not names or not _has_instances(dataset)
            or hasattr(model, 'language_model')):
        return
    for name, head in model.named_modules():
        found = getattr(head, 'num_classes', None)
        if (CLASS_HEAD.fullmatch(name) and isinstance(found, int)
                and not getattr(head, 'class_agnostic', False)
                and found != len(names)):
            raise ValueError(
                f'model.{name} has num_classes={found}, the {split} data '
                f'set{_source(dataset)} has the {len(names)} classes '
                f'{", ".join(names[:10])}{", ..." if len(names) > 10 else ""}'
                f'; set num_classes of the head, or metainfo.classes of the '
                'data set')


def check_evaluation(metric: BaseMetric, split: str) -> None:
    """Refuse annotations in COCO format that their evaluation cannot read.

    Args:
        metric (BaseMetric): Others than MMDetection's of COCO pass.
        split (str): What the message calls it.

    Raises:
        ValueError: An annotation lacks a field.
    """
    truth = getattr(getattr(metric, '_coco_api', None), 'dataset', {})
    for annotation in truth.get('annotations', ()):
        for field in ('iscrowd', 'area'):
            if field not in annotation:
                raise ValueError(
                    f'{split}_evaluator.ann_file: annotation '
                    f'{annotation.get("id")} has no {field!r}, which COCO\'s '
                    'evaluation needs; write "iscrowd": 0 and the area in '
                    'pixels into each annotation')


def _has_instances(dataset: Dataset) -> bool:
    return (hasattr(dataset, 'get_data_info')
            and 'instances' in dataset.get_data_info(0))


def check_labels(dataset: Dataset, classes: int, split: str) -> None:
    """Refuse labels for which the head of a classifier has no output.

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


def check_order(dataset: Dataset, split: str) -> None:
    """Refuse class names in another order than that of their folders.

    Args:
        dataset (Dataset): Others than MMPretrain's of folders pass.
        split (str): What the message calls it.

    Raises:
        ValueError: They have the same names in another order.
    """
    folders = list(getattr(dataset, 'folder_to_idx', ()))
    names = list(getattr(dataset, 'metainfo', {}).get('classes') or ())
    if names != folders and sorted(names) == sorted(folders):
        raise ValueError(
            f'the {split} data set{_source(dataset)} numbers its folders '
            f'{", ".join(folders[:10])}, and its classes are in another '
            f'order, {", ".join(names[:10])}: write them in that of the '
            f'folders')


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
