"""Class folders of small images, decoded once."""

from collections import defaultdict

import mmcv
import numpy as np
from mmpretrain.datasets import CustomDataset

from mmstepnet.checks import check_positive
from mmstepnet.registry import DATASETS


@DATASETS.register_module()
class FolderInMemory(CustomDataset):
    """MMPretrain's class folders, images held in memory, a fixed share.

    As in the host's CIFAR, a sample holds its image itself, ``img``
    (H, W, 3) in uint8, here in BGR order, so a pipeline has no
    ``LoadImageFromFile`` and an epoch reads no files.

    Which images a share takes depends on the files' names, ``per_class`` and
    ``seed`` alone: the files of each class, sorted by name, are drawn from by
    ``numpy.random.RandomState(seed)``, whose stream NumPy keeps for good. A
    smaller share is part of every larger one of the same seed.

    Args:
        data_root (str): Folder of a folder a class.
        per_class (int, optional): Images of each class. None is all.
            Defaults to None.
        seed (int): Chooses them. Defaults to 0.
        **kwargs: See :class:`mmpretrain.datasets.CustomDataset`.

    Raises:
        ValueError: ``per_class`` is not a positive integer, or a class has
            fewer images, or none.
        OSError: A file is no image.
    """

    def __init__(
        self,
        data_root: str,
        per_class: int | None = None,
        seed: int = 0,
        **kwargs,
    ):
        if per_class is not None:
            check_positive('FolderInMemory', per_class=per_class)
        self.per_class = per_class
        self.seed = seed
        super().__init__(data_root, **kwargs)

    def load_data_list(self) -> list[dict]:
        """Choose the files and decode them."""
        classes = defaultdict(list)
        for sample in super().load_data_list():
            classes[sample['gt_label']].append(sample)
        chosen = [
            sample
            for label in range(len(self.CLASSES))
            for sample in self._share(label, classes[label])
        ]
        for sample in chosen:
            sample['img'] = mmcv.imread(sample['img_path'])
            if sample['img'] is None:
                raise OSError(f'{sample["img_path"]} is no image')
        return chosen

    def _share(self, label: int, samples: list[dict]) -> list[dict]:
        if len(samples) < (self.per_class or 1):
            raise ValueError(
                f'FolderInMemory: class {self.CLASSES[label]!r} of '
                f'{self.data_root!r} has {len(samples)} images, expected at '
                f'least {self.per_class or 1}; unpack its archive again, or '
                'choose per_class accordingly'
            )
        if self.per_class is None:
            return samples
        samples = sorted(samples, key=lambda sample: sample['img_path'])
        order = np.random.RandomState(self.seed).permutation(len(samples))
        return [samples[i] for i in sorted(order[: self.per_class])]
