"""Checkpoints that survive a kill at any moment."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mmengine.dist import is_main_process
from mmengine.fileio import LocalBackend
from mmengine.hooks import CheckpointHook
from mmengine.runner import Runner

from mmstepnet.files import remove_unfinished
from mmstepnet.registry import HOOKS

from .checkpoint import find_resumable
from .patches import warn_of_files_in_place


class _Postponed:
    """A file backend that keeps a list of what it shall remove.

    Args:
        backend (BaseStorageBackend): Does the rest.
    """

    def __init__(self, backend):
        self._backend = backend
        self.removals = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def remove(self, path: str) -> None:
        """Note a file."""
        self.removals.append((self._backend.remove, path))

    def rmtree(self, path: str) -> None:
        """Note a folder."""
        self.removals.append((self._backend.rmtree, path))


@HOOKS.register_module()
class DurableCheckpointHook(CheckpointHook):
    """mmengine's checkpoints, of which a whole one is there at any moment.

    mmengine's hook deletes the old checkpoint, then writes the new one in
    place: killed in between, a job with ``max_keep_ckpts=1`` has none left.
    Here each is written under another name, renamed (where
    :func:`~mmstepnet.jobs.patches.patch_mmengine` was called, else a
    warning says so), and only then are old ones deleted. ``tools/train.py``
    calls it, and puts this hook in the place of mmengine's.

    Args:
        interval (int): Epochs or iterations from one to the next; -1 is
            never. Defaults to -1.
        max_keep_ckpts (int): How many are kept; -1 is all. Defaults to -1.
        **kwargs: See :class:`mmengine.hooks.CheckpointHook`.

    Raises:
        ValueError: A number is neither positive nor -1. mmengine's hook
            would never save, or fail when it does.
    """

    def __init__(self, interval: int = -1, *args, max_keep_ckpts: int = -1,
                 **kwargs):
        for name, value in (('interval', interval),
                            ('max_keep_ckpts', max_keep_ckpts)):
            if not isinstance(value, int) or (value < 1 and value != -1):
                raise ValueError(f'DurableCheckpointHook: {name} must be a '
                                 f'positive integer or -1, got {value!r}')
        super().__init__(
            interval, *args, max_keep_ckpts=max_keep_ckpts, **kwargs)

    def before_train(self, runner: Runner) -> None:
        """Clear away what a killed job left, prepare as the host does."""
        super().before_train(runner)
        warn_of_files_in_place(runner, self.out_dir)
        if is_main_process() and isinstance(self.file_backend, LocalBackend):
            remove_unfinished(self.out_dir)
            remove_unfinished(runner.work_dir)

    def _save_checkpoint_with_step(self, runner, step, meta):
        with self._removals_postponed(runner):
            super()._save_checkpoint_with_step(runner, step, meta)

    def _save_best_checkpoint(self, runner, metrics):
        with self._removals_postponed(runner):
            super()._save_best_checkpoint(runner, metrics)

    @contextmanager
    def _removals_postponed(self, runner: Runner) -> Iterator[None]:
        if isinstance(self.file_backend, _Postponed):  # the best is the last
            yield
            return
        backend = self.file_backend
        self.file_backend = postponed = _Postponed(backend)
        try:
            yield
        except OSError as error:
            last, _ = find_resumable(self.out_dir) or ('none', None)
            raise OSError(
                error.errno, f'{error.strerror}. Go on with --resume; the '
                f'last whole checkpoint is {last}') from error
        finally:
            self.file_backend = backend
        # A name may have been written anew.
        kept = {self.last_ckpt, *self._best_checkpoints()}
        for remove, path in postponed.removals:
            if path not in kept:
                remove(path)

    def _best_checkpoints(self) -> list[str | None]:
        return [getattr(self, 'best_ckpt_path', None),
                *getattr(self, 'best_ckpt_path_dict', {}).values()]
