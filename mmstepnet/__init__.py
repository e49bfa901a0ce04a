from .compatibility import check_hosts
from .version import __version__

check_hosts('mmengine', 'mmcv')

__all__ = ['__version__']
