from .autocast import AutocastOptimWrapper
from .hooks import *  # noqa: F403
from .loops import ResumableEpochLoop
from .metrics import BLEU, Perplexity

__all__ = [
    'AutocastOptimWrapper', 'BLEU', 'Perplexity', 'ResumableEpochLoop'
]
