from mmstepnet.compatibility import check_hosts

check_hosts('mmengine', 'mmcv')

from .autocast import AutocastOptimWrapper  # noqa: E402
from .hooks import *  # noqa: E402, F403

__all__ = ['AutocastOptimWrapper']
