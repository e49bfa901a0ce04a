"""Checkpoints that are whole or not there."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from mmengine.fileio import LocalBackend, register_backend
from mmengine.hooks import CheckpointHook
from mmengine.runner import Runner

from mmstepnet.files import remove_unfinished, write_whole
from mmstepnet.registry import HOOKS


class WholeFileBackend(LocalBackend):
    """mmengine's local files, each renamed to its name when it is whole."""

    def put(self, obj: bytes, filepath: str | Path) -> None:
        """Write bytes, see :func:`mmstepnet.files.write_whole`."""
        write_whole(filepath, obj)


@HOOKS.register_module()
class DurableCheckpointHook(CheckpointHook):
    """mmengine's checkpoints, of which a whole one is there at any moment.

    mmengine's hook deletes the old checkpoint, then writes the new one in
    place: killed in between, a job with ``max_keep_ckpts=1`` has none left.
    Here each is written under another name, renamed, and only then are old
    ones deleted. A diverged training ends with an error instead of a
    checkpoint. ``tools/train.py`` puts this hook in the place of mmengine's.

    Args:
        **kwargs: See :class:`mmengine.hooks.CheckpointHook`.
    """

    def before_train(self, runner: Runner) -> None:
        """Clear away what a killed job left, prepare as the host does."""
        register_backend('local', WholeFileBackend, force=True, prefixes='')
        super().before_train(runner)
        for folder in (self.out_dir, runner.work_dir):
            remove_unfinished(folder)

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Look at the weights.

        Raises:
            FloatingPointError: Some are NaN.
        """
        if any(
            torch.is_tensor(value) and value.isnan().any()
            for value in checkpoint['state_dict'].values()
        ):
            raise FloatingPointError(
                f'training has diverged, with NaN after iteration '
                f'{runner.iter + 1}; no checkpoint was written. Go on from '
                'the last one with a lower learning rate or clipped gradients'
            )

    def _save_checkpoint_with_step(self, runner, step, meta):
        with self._deleting_last():
            super()._save_checkpoint_with_step(runner, step, meta)

    def _save_best_checkpoint(self, runner, metrics):
        with self._deleting_last():
            super()._save_best_checkpoint(runner, metrics)

    @contextmanager
    def _deleting_last(self) -> Iterator[None]:
        """Keep what mmengine deletes until the new one is there."""
        remove = self.file_backend.remove
        deleted = []
        self.file_backend.remove = deleted.append
        try:
            yield
        finally:
            self.file_backend.remove = remove
        # A name may have been written anew.
        kept = {
            self.last_ckpt,
            getattr(self, 'best_ckpt_path', None),
            *getattr(self, 'best_ckpt_path_dict', {}).values(),
        }
        for path in deleted:
            if path not in kept:
                remove(path)


@HOOKS.register_module()
class InterimCheckpointHook(DurableCheckpointHook):
    """Keep one checkpoint of the last iterations, ``interim.pth``.

    For epochs so long that losing one matters. ``--resume`` finds it where it
    is the newest; the loop must be :class:`ResumableEpochLoop`, which goes on
    within an epoch.

    Args:
        interval (int): Iterations from one to the next.
    """

    def __init__(self, interval: int):
        super().__init__(
            interval,
            by_epoch=False,
            save_last=False,
            filename_tmpl='interim.pth',
        )
