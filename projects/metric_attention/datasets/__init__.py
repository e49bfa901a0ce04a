"""Data sets and their batches.

:mod:`.multi30k` is imported by name: it alone needs tokenizers.
"""

from .bucket_sampler import BucketBatchSampler
from .human_segmentation import HumanSegmentation
from .points import MNISTPoints, Moon

__all__ = ['BucketBatchSampler', 'HumanSegmentation', 'MNISTPoints', 'Moon']
