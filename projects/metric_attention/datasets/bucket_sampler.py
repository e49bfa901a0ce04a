"""Batches of samples of about the same length."""

from collections.abc import Iterator

import torch
from torch.utils.data import Sampler

from mmstepnet.registry import DATA_SAMPLERS


@DATA_SAMPLERS.register_module()
class BucketBatchSampler(Sampler[list[int]]):
    """Batch samples by length, so that little of a batch is padding.

    Pools of several batches are drawn from the sampler, each is sorted by
    length and cut into batches, whose order is then shuffled. Seed and epoch
    are the sampler's, so that a resumed epoch has the same batches.

    Args:
        sampler (Sampler): mmengine's ``DefaultSampler``; its data set has
            ``get_length(index)``.
        batch_size (int): Samples of a batch.
        pool (int): Batches that are sorted together. Defaults to 50.
        drop_last (bool): Whether to leave out a last batch that is not full.
            Defaults to False.
    """

    def __init__(
        self,
        sampler: Sampler,
        batch_size: int,
        pool: int = 50,
        drop_last: bool = False,
    ):
        self.sampler = sampler
        self.batch_size = batch_size
        self.pool = pool
        self.drop_last = drop_last

    def __iter__(self) -> Iterator[list[int]]:
        """Yield lists of indices."""
        get_length = self.sampler.dataset.get_length
        indices = list(self.sampler)
        if self.drop_last:
            indices = indices[: len(self) * self.batch_size]
        size = self.pool * self.batch_size
        batches = []
        for start in range(0, len(indices), size):
            pool = sorted(indices[start : start + size], key=get_length)
            batches += [
                pool[first : first + self.batch_size]
                for first in range(0, len(pool), self.batch_size)
            ]
        generator = torch.Generator().manual_seed(
            self.sampler.seed + self.sampler.epoch
        )
        for place in torch.randperm(len(batches), generator=generator):
            yield batches[place]

    def __len__(self) -> int:
        full, rest = divmod(len(self.sampler), self.batch_size)
        return full + bool(rest and not self.drop_last)
