"""Training that goes on within an epoch."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from mmengine.dist import get_rank
from mmengine.runner import EpochBasedTrainLoop, Runner
from torch.utils.data import Sampler

from mmstepnet.registry import LOOPS


def seed_generators(*numbers: int) -> None:
    """Seed PyTorch's, NumPy's and Python's generator by several numbers."""
    # Mixed: CPU generators look at the lowest 32 bits alone.
    mixed = np.random.SeedSequence(numbers)
    for seed, draw in zip(
        (torch.manual_seed, np.random.seed, random.seed),
        mixed.generate_state(3),
        strict=True,
    ):
        seed(int(draw))


class SeededBatch(list):
    """Indices of a batch, which seed the generators as they are taken.

    A data loader takes each where it reads its sample, in a worker or not:
    what augmentation draws then follows from these numbers alone.

    Args:
        indices (Iterable[int]): Indices of the samples.
        *numbers (int): What the seeds follow from, beside each place.
    """

    def __init__(self, indices: Any, *numbers: int):
        super().__init__(indices)
        self.numbers = numbers

    def __iter__(self) -> Iterator[int]:
        for place, index in enumerate(super().__iter__()):
            seed_generators(*self.numbers, place)
            yield index

    def __reduce__(self) -> tuple:
        return SeededBatch, (self[:], *self.numbers)


class SeededBatches(Sampler):
    """Another sampler's batches, each a :class:`SeededBatch`.

    Args:
        batches (Sampler): What samples batches.
        *numbers (int): What all seeds follow from.
    """

    def __init__(self, batches: Sampler, *numbers: int):
        self.batches = batches
        self.sampler = batches.sampler  # DistSamplerSeedHook asks for it
        self.numbers = numbers
        self.epoch = self.trained = 0

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[SeededBatch]:
        for number, batch in enumerate(self.batches):
            if number >= self.trained:
                yield SeededBatch(batch, *self.numbers, self.epoch, number)


@LOOPS.register_module()
class ResumableEpochLoop(EpochBasedTrainLoop):
    """Epochs, which a checkpoint from their middle resumes there.

    mmengine's loop begins such an epoch anew. This one skips the indices of
    the batches that were trained, and seeds each iteration and each sample by
    its number, so that a run that was interrupted ends with the weights of
    one that was not, with any number of workers. Data sets must not remember
    what they gave before, as MMDetection's mosaic with its cache does. See
    :class:`InterimCheckpointHook`. Over a base config that has ``by_epoch``,
    write ``_delete_=True`` beside the type.

    Args:
        runner (Runner): The runner.
        dataloader (DataLoader | dict): Its batches of indices follow from
            seed and epoch alone.
        max_epochs (int): Epochs.
        **kwargs: See :class:`mmengine.runner.EpochBasedTrainLoop`.
    """

    def __init__(self, runner: Runner, *args: Any, **kwargs: Any):
        super().__init__(runner, *args, **kwargs)
        # The sampler's; resuming gives the runner the checkpoint's.
        self._seed = runner.seed
        self._batches = SeededBatches(
            self.dataloader.batch_sampler, runner.seed, get_rank()
        )
        # A data loader refuses to change it, because workers that run would
        # not learn of it; none run yet.
        self.dataloader.__dict__['batch_sampler'] = self._batches

    def run_epoch(self) -> None:
        """Run an epoch, or what is left of it.

        Raises:
            ValueError: The checkpoint comes from epochs of another length, or
                from a run of another seed, whose order of samples this one
                does not know.
        """
        if self.runner.seed != self._seed:
            raise ValueError(
                f'this run orders its samples by the seed {self._seed}; '
                f'resume it with randomness.seed={self.runner.seed}, the '
                "checkpoint's"
            )
        length = len(self.dataloader)
        trained = self._iter - self._epoch * length
        if not 0 <= trained <= length:
            raise ValueError(
                f'the checkpoint stands at iteration {self._iter} in epoch '
                f'{self._epoch + 1}, which no epochs of {length} iterations '
                'have; resume it with its batch size, data and processes'
            )
        self._batches.epoch = self._epoch
        self._batches.trained = trained
        super().run_epoch()

    def run_iter(self, idx: int, data_batch: Any) -> None:
        """Run an iteration, which is seeded by its number."""
        seed_generators(self.runner.seed, self._iter, get_rank())
        super().run_iter(idx + self._batches.trained, data_batch)
