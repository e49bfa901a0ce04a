"""Data sets of OpenMMLab that come with a package or are read into memory.

For whoever writes configs: ``type='mmstepnet.DigitsClassification'``.
"""

from typing import Any

from mmstepnet.compatibility import FIX, check_hosts

check_hosts('mmengine', 'mmcv', 'mmpretrain')

from mmstepnet.registry import DATASETS  # noqa: E402

from .digits import DigitsClassification, load_digit_split  # noqa: E402
from .folder_in_memory import FolderInMemory  # noqa: E402
from .stl10 import STL10  # noqa: E402

__all__ = [
    'STL10', 'DigitsClassification', 'FolderInMemory', 'load_digit_split'
]


def __getattr__(name: str) -> Any:
    """Import the detection set when it is asked for.

    MMDetection takes seconds to import, and may be absent or without mmcv's
    compiled ops where only classification is wanted.
    """
    if name != 'DigitsDetection':
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    try:
        from .digits_detection import DigitsDetection
    except ImportError as error:
        raise ImportError(
            'DigitsDetection needs mmdet, which cannot be imported here '
            f'({error}); {FIX}') from error
    return DigitsDetection


@DATASETS.register_module('DigitsDetection')
def _build_digits_detection(**kwargs) -> Any:
    """Build ``type='mmstepnet.DigitsDetection'``, importing it only then."""
    return __getattr__('DigitsDetection')(**kwargs)
