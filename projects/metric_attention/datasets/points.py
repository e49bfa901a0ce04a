"""Vector data: points with a class each."""

from pathlib import Path

import torch
from mmengine.registry import FUNCTIONS
from mmpretrain.datasets.mnist import read_sn3_pascalvincent_tensor
from sklearn.datasets import make_moons
from torch import Tensor
from torch.utils.data import Dataset

from mmstepnet.checks import check_choice
from mmstepnet.registry import DATASETS

MOON_SPLITS = {'train': 0, 'test': 1}
"""Splits and the random state that draws each."""

MNIST_FILES = {'train': 'train', 'test': 't10k'}
MNIST_MEAN, MNIST_STD = 0.1307, 0.3081
"""Of all pixels of the training images, from 0 to 1."""


class Points(Dataset):
    """Labelled points.

    Whole in memory and without a pipeline, which costs more for each sample
    than these networks do. A sample is a dict of ``inputs`` (C,), float32,
    and ``labels`` (), int64.

    Args:
        features (Tensor): (N, C).
        labels (Tensor): Classes (N,), from 0.
        classes (tuple[str]): Their names.
    """

    def __init__(
        self, features: Tensor, labels: Tensor, classes: tuple[str, ...]
    ):
        self.features = features.float()
        self.labels = labels.long()
        self.metainfo = dict(classes=classes)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return dict(inputs=self.features[index], labels=self.labels[index])

    def __getitems__(self, indices: list[int]) -> dict[str, Tensor]:
        """Take a whole batch at once, for :func:`whole_batch`."""
        return self[torch.tensor(indices)]


@FUNCTIONS.register_module()
def whole_batch(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Collate what :class:`Points` gives: a batch, there is nothing to do.

    Taking small samples one by one costs more than a step of these networks.
    """
    return batch


@DATASETS.register_module()
class Moon(Points):
    """Two interleaved half circles, scikit-learn's ``make_moons``.

    The paper (https://arxiv.org/abs/2412.18288, Appendix A) prints noise 0.2,
    400 points to train and 100 to test with; the default size is ours. The
    two splits are drawn once, with random states of their own (a reading);
    repetitions differ in what follows.

    Args:
        split (str): ``'train'`` or ``'test'``. Defaults to ``'train'``.
        size (int): Points, half of them a class. Defaults to 1000.
        noise (float): Standard deviation of the noise; the circles have
            radius 1. Defaults to 0.2.

    Raises:
        ValueError: ``split`` is neither.
    """

    def __init__(
        self, split: str = 'train', size: int = 1000, noise: float = 0.2
    ):
        check_choice('Moon: split', split, MOON_SPLITS)
        points, labels = make_moons(
            size, noise=noise, random_state=MOON_SPLITS[split]
        )
        super().__init__(
            torch.from_numpy(points),
            torch.from_numpy(labels),
            ('upper', 'lower'),
        )


@DATASETS.register_module()
class MNISTPoints(Points):
    """MNIST as vectors of 784 pixels.

    Reads the four original files, ``*-ubyte.gz`` or unpacked, with
    MMPretrain's parser. Its own ``MNIST`` wants them unpacked and yields
    images one by one through a pipeline.

    Args:
        data_root (str): Folder of the files.
        split (str): ``'train'``, 60,000 images, or ``'test'``, 10,000.
            Defaults to ``'train'``.

    Raises:
        ValueError: ``split`` is neither.
        FileNotFoundError: A file is missing.
    """

    def __init__(self, data_root: str, split: str = 'train'):
        check_choice('MNISTPoints: split', split, MNIST_FILES)
        stem = Path(data_root) / MNIST_FILES[split]
        images = _read_idx(f'{stem}-images-idx3-ubyte')
        labels = _read_idx(f'{stem}-labels-idx1-ubyte')
        pixels = images.flatten(1).float() / 255
        super().__init__(
            (pixels - MNIST_MEAN) / MNIST_STD, labels, tuple('0123456789')
        )


def _read_idx(stem: str) -> Tensor:
    path = next((p for p in (f'{stem}.gz', stem) if Path(p).is_file()), None)
    if path is None:
        raise FileNotFoundError(
            f'there is neither {stem} nor {stem}.gz; put the four files of '
            'MNIST there, or set data_root'
        )
    return read_sn3_pascalvincent_tensor(path)
