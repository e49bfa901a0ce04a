"""Scikit-learn's handwritten digits, split once for every data set here."""

import numpy as np
from mmpretrain.datasets import BaseDataset
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from mmstepnet.checks import check_choice
from mmstepnet.registry import DATASETS

DIGIT_CLASSES = tuple('0123456789')
DIGIT_SPLITS = ('train', 'val')


def load_digit_split(split: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Load one split of scikit-learn's 1,797 real handwritten digits.

    The split is stratified by class and fixed: 1,437 images to train with
    and 360 to validate with.

    Args:
        split (str): ``'train'`` or ``'val'``.

    Returns:
        tuple: Images (N, 8, 8), uint8 with ink from 0 to 255; labels (N,),
        int64; positions in ``load_digits()`` (N,), ascending.

    Raises:
        ValueError: ``split`` is neither.
    """
    check_choice('split of the digits', split, DIGIT_SPLITS)
    digits = load_digits()
    positions = train_test_split(
        np.arange(len(digits.target)),
        test_size=0.2,
        random_state=0,
        stratify=digits.target,
    )
    chosen = np.sort(positions[DIGIT_SPLITS.index(split)])
    images = np.rint(digits.images[chosen] * (255 / 16))  # ink is 0 to 16
    return images.astype(np.uint8), digits.target[chosen], chosen


@DATASETS.register_module()
class DigitsClassification(BaseDataset):
    """Scikit-learn's 1,797 handwritten digits, 8x8 px, 10 classes.

    Nothing is downloaded and no file is read. As in the host's CIFAR and
    MNIST, a sample holds its image itself, ``img`` (8, 8, 3) in uint8 with
    three equal channels, so a pipeline starts with ``Resize`` and has no
    ``LoadImageFromFile``.

    Args:
        split (str): ``'train'``, 1,437 images, or ``'val'``, 360 images; see
            :func:`load_digit_split`. Defaults to ``'train'``.
        **kwargs: See :class:`mmpretrain.datasets.BaseDataset`;
            ``data_root`` and ``data_prefix`` have no meaning here.

    Raises:
        ValueError: ``split`` is neither.
    """

    METAINFO = dict(classes=DIGIT_CLASSES)

    def __init__(self, split: str = 'train', **kwargs):
        self.split = split
        super().__init__(ann_file='', **kwargs)

    def load_data_list(self) -> list[dict]:
        """Load images and labels."""
        images, labels, _ = load_digit_split(self.split)
        images = np.repeat(images[..., None], 3, axis=-1)
        return [
            dict(img=image, gt_label=int(label))
            for image, label in zip(images, labels)
        ]
