"""Data sets of OpenMMLab that come with a package or are read into memory.

For whoever writes configs: ``type='mmstepnet.DigitsClassification'``.
"""

from mmstepnet.compatibility import check_hosts

check_hosts('mmengine', 'mmcv', 'mmpretrain')

from .digits import DigitsClassification, load_digit_split  # noqa: E402
from .folder_in_memory import FolderInMemory  # noqa: E402
from .stl10 import STL10  # noqa: E402

__all__ = [
    'STL10',
    'DigitsClassification',
    'FolderInMemory',
    'load_digit_split',
]
