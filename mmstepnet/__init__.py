from .compatibility import check_hosts
from .version import __version__

check_hosts('mmengine', 'mmcv')

__all__ = ['__version__', 'fold']


def __getattr__(name: str):
    """Import ``fold`` where it is used: it needs the models, hence hosts."""
    if name == 'fold':
        from .steps.fold import fold
        return fold
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
