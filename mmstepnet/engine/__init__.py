from .autocast import AutocastOptimWrapper
from .hooks import *  # noqa: F403
from .loops import ResumableEpochLoop

__all__ = ['AutocastOptimWrapper', 'ResumableEpochLoop']
