"""Checkpoints between those of the epochs."""

import os
from pathlib import Path

from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmstepnet.registry import HOOKS

INTERIM = 'interim.pth'
"""File of the newest one in the work directory."""


@HOOKS.register_module()
class InterimCheckpointHook(Hook):
    """Keep one checkpoint of the last iterations, whole at every moment.

    For epochs so long that losing one matters. mmengine's own hook writes in
    place: killed in between, it leaves half a file. ``--resume`` finds the
    newest of both; the loop must be :class:`ResumableEpochLoop`.

    Args:
        interval (int): Iterations from one to the next.
    """

    # After the schedulers' steps, as mmengine's CheckpointHook.
    priority = 'VERY_LOW'

    def __init__(self, interval: int):
        if not isinstance(interval, int) or interval < 1:
            raise ValueError('InterimCheckpointHook: interval must be a '
                             f'positive integer, got {interval!r}')
        self.interval = interval

    def after_train_iter(self,
                         runner: Runner,
                         batch_idx: int,
                         data_batch: dict | None = None,
                         outputs: dict | None = None) -> None:
        """Save every so many iterations."""
        if not self.every_n_train_iters(runner, self.interval):
            return
        folder = Path(runner.work_dir)
        temporary = folder / f'.{INTERIM}.tmp'
        runner.save_checkpoint(
            str(folder), temporary.name, save_param_scheduler=True,
            by_epoch=False)
        if is_main_process():
            os.replace(temporary, folder / INTERIM)
            (folder / 'last_checkpoint').write_text(str(folder / INTERIM))
