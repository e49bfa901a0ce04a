from mmstepnet.compatibility import check_hosts

check_hosts('mmengine', 'mmcv')

from .autocast import AutocastOptimWrapper  # noqa: E402
from .hooks import *  # noqa: E402, F403
from .loops import ResumableEpochLoop  # noqa: E402

__all__ = ['AutocastOptimWrapper', 'ResumableEpochLoop']
