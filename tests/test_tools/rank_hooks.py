"""A hook of the jobs that test_ranks.py starts, named in their configs."""

import os
import signal

from mmengine.dist import get_rank
from mmengine.hooks import Hook
from mmengine.registry import HOOKS


@HOOKS.register_module()
class DyingRankHook(Hook):
    """Kill one process in the middle of an iteration.

    Args:
        rank (int): Which.
        iteration (int): When.
    """

    def __init__(self, rank: int, iteration: int):
        self.rank, self.iteration = rank, iteration

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if get_rank() == self.rank and runner.iter == self.iteration:
            os.kill(os.getpid(), signal.SIGKILL)
