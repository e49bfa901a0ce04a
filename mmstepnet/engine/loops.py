"""Training that goes on within an epoch."""

import random
from typing import Any

import numpy as np
import torch
from mmengine.dist import get_rank
from mmengine.runner import EpochBasedTrainLoop, Runner

from mmstepnet.registry import LOOPS


@LOOPS.register_module()
class ResumableEpochLoop(EpochBasedTrainLoop):
    """Epochs, which a checkpoint from their middle resumes there.

    mmengine's loop begins such an epoch anew. This one leaves out the batches
    that were trained, and seeds each iteration by its number, so that a run
    that was interrupted ends with the weights of one that was not. See
    :class:`InterimCheckpointHook`.

    Args:
        runner (Runner): The runner.
        dataloader (DataLoader | dict): Its batches follow from seed and
            epoch alone.
        max_epochs (int): Epochs.
        **kwargs: See :class:`mmengine.runner.EpochBasedTrainLoop`.
    """

    def __init__(self, runner: Runner, *args: Any, **kwargs: Any):
        super().__init__(runner, *args, **kwargs)
        # The sampler's; resuming gives the runner the checkpoint's.
        self._seed = runner.seed

    def run_epoch(self) -> None:
        """Run an epoch, or what is left of it.

        Raises:
            ValueError: The checkpoint comes from epochs of another length, or
                from a run of another seed, whose order of samples this one
                does not know.
        """
        if self.runner.seed != self._seed:
            raise ValueError(
                f'the checkpoint was trained with the seed '
                f'{self.runner.seed}, this run orders its samples by the '
                f'seed {self._seed}; resume it with '
                f'randomness.seed={self.runner.seed}')
        length = len(self.dataloader)
        trained = self._iter - self._epoch * length
        if not 0 <= trained <= length:
            raise ValueError(
                f'the checkpoint stands at iteration {self._iter} in epoch '
                f'{self._epoch + 1}, which no epochs of {length} iterations '
                'have; resume it with the batch size, data and number of '
                'processes that it was trained with')
        self.runner.call_hook('before_train_epoch')
        self.runner.model.train()
        for idx, data_batch in enumerate(self.dataloader):
            if idx < trained:
                continue
            # Mixed: CPU generators look at the lowest 32 bits alone.
            mixed = np.random.SeedSequence(
                [self.runner.seed, self._iter, get_rank()])
            for seed, draw in zip(
                    (torch.manual_seed, np.random.seed, random.seed),
                    mixed.generate_state(3), strict=True):
                seed(int(draw))
            self.run_iter(idx, data_batch)
        self.runner.call_hook('after_train_epoch')
        self._epoch += 1
