"""The composed digits in COCO format. Importing it needs MMDetection."""

from mmdet.datasets import CocoDataset
from mmengine.fileio import exists

from .digits import DIGIT_CLASSES


class DigitsDetection(CocoDataset):
    """Handwritten digits on textured canvases, 10 classes, COCO format.

    ``tools/dataset_converters/compose_digits.py`` makes it, with train and
    val from different digits, see :func:`load_digit_split`.

    Args:
        **kwargs: See :class:`mmdet.datasets.CocoDataset`.

    Raises:
        FileNotFoundError: The annotation file or the folder of images is not
            there; the message names the command that makes them.
    """

    METAINFO = dict(
        classes=DIGIT_CLASSES,
        palette=[(220, 20, 60), (0, 120, 230), (0, 150, 60), (250, 170, 30),
                 (106, 0, 228), (0, 180, 199), (197, 60, 200), (120, 90, 40),
                 (110, 110, 110), (160, 200, 0)])

    def load_data_list(self) -> list[dict]:
        """Load the annotations, once the files are known to be there."""
        paths = {
            'ann_file': self.ann_file,
            "data_prefix['img']": self.data_prefix.get('img', ''),
        }
        for name, path in paths.items():
            if not exists(path, backend_args=self.backend_args):
                raise FileNotFoundError(
                    f'{name} is {path!r}, which does not exist; compose the '
                    'data set with "python tools/dataset_converters/'
                    f'compose_digits.py --out {self.data_root}", or correct '
                    f'data_root={self.data_root!r}')
        return super().load_data_list()
