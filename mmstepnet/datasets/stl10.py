"""STL-10, from the binary files of its authors."""

from functools import partial

import mmengine.dist as dist
import torchvision.datasets
from mmpretrain.datasets import BaseDataset

from mmstepnet.checks import check_choice
from mmstepnet.registry import DATASETS

STL10_CLASSES = (
    'airplane',
    'bird',
    'car',
    'cat',
    'deer',
    'dog',
    'horse',
    'monkey',
    'ship',
    'truck',
)
STL10_SPLITS = ('train', 'test')


@DATASETS.register_module()
class STL10(BaseDataset):
    """STL-10, 96x96 px, 10 classes (https://cs.stanford.edu/~acoates/stl10).

    MMPretrain has no such data set; torchvision reads, checks and downloads
    the files. As in the host's CIFAR, a sample holds its image itself,
    ``img`` (96, 96, 3) in uint8 and RGB order.

    Args:
        data_root (str): Folder that holds ``stl10_binary/``.
        split (str): ``'train'``, 5,000 labelled images, or ``'test'``,
            8,000. Defaults to ``'train'``.
        download (bool): Whether to download what is missing, 2.5 GB.
            Defaults to True, as in the host's CIFAR.
        **kwargs: See :class:`mmpretrain.datasets.BaseDataset`; ``ann_file``
            and ``data_prefix`` have no meaning here.

    Raises:
        ValueError: ``split`` is neither.
        RuntimeError: The files are missing or damaged.
    """

    METAINFO = dict(classes=STL10_CLASSES)

    def __init__(
        self,
        data_root: str,
        split: str = 'train',
        download: bool = True,
        **kwargs,
    ):
        check_choice('STL10: split', split, STL10_SPLITS)
        self.split = split
        self.download = download
        super().__init__(ann_file='', data_root=data_root, **kwargs)

    def load_data_list(self) -> list[dict]:
        """Load images and labels."""
        read = partial(torchvision.datasets.STL10, self.data_root, self.split)
        if self.download:
            if dist.is_main_process():
                read(download=True)
            dist.barrier()
        binary = read()
        images = binary.data.transpose(0, 2, 3, 1)
        return [
            dict(img=image, gt_label=int(label))
            for image, label in zip(images, binary.labels)
        ]
