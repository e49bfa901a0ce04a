"""Checkpoints between those of the epochs."""

from mmengine.dist import is_main_process
from mmengine.fileio import join_path, put_text
from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmstepnet.checks import check_positive
from mmstepnet.registry import HOOKS

from .patches import warn_of_files_in_place

INTERIM = 'interim.pth'
"""File of the newest one in the work directory."""


@HOOKS.register_module()
class InterimCheckpointHook(Hook):
    """Keep one checkpoint of the last iterations.

    It is whole at every moment where
    :func:`~mmstepnet.jobs.patches.patch_mmengine` was called, as by
    ``tools/train.py``; elsewhere a warning says that it is not.

    For epochs so long that losing one matters. ``--resume`` finds the newest
    of these and of those of the epochs; the loop must be
    :class:`ResumableEpochLoop`, which goes on within an epoch.

    Args:
        interval (int): Iterations from one to the next.
    """

    # After the schedulers' steps, as mmengine's CheckpointHook.
    priority = 'VERY_LOW'

    def __init__(self, interval: int):
        check_positive('InterimCheckpointHook', interval=interval)
        self.interval = interval

    def before_train(self, runner: Runner) -> None:
        """Look whether files are written in place."""
        warn_of_files_in_place(runner, runner.work_dir)

    def after_train_iter(self,
                         runner: Runner,
                         batch_idx: int,
                         data_batch: dict | None = None,
                         outputs: dict | None = None) -> None:
        """Save every so many iterations."""
        if not self.every_n_train_iters(runner, self.interval):
            return
        runner.save_checkpoint(runner.work_dir, INTERIM, by_epoch=False)
        if is_main_process():
            put_text(
                join_path(runner.work_dir, INTERIM),
                join_path(runner.work_dir, 'last_checkpoint'))
