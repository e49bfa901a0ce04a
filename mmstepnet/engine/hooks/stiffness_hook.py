"""Stiffness of a model on the data that a runner evaluates it on."""

from collections.abc import Sequence
from pathlib import Path

import torch
from mmengine.dist import (
    all_reduce,
    broadcast_object_list,
    collect_results,
    get_world_size,
    is_main_process,
)
from mmengine.hooks import Hook
from mmengine.model import BaseTTAModel
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop, Runner
from torch import Tensor
from torch.utils.data import DataLoader

from mmstepnet.registry import HOOKS
from mmstepnet.stiffness import (
    TrajectoryRecorder,
    save_record,
    total_neural_stiffness,
    total_stiffness_proportion,
)
from mmstepnet.stiffness.trajectory import (
    DEFAULT_READING,
    FIELDS,
    READINGS,
    unwrap,
)

PREFIX = 'stiffness'
"""Of the scalars' names, the folder and the files."""


@HOOKS.register_module()
class StiffnessHook(Hook):
    """Measure stiffness in validation and test.

    Works with every residual model that
    :class:`~mmstepnet.stiffness.TrajectoryRecorder` knows, in any mmengine
    runner: ``custom_hooks=[dict(type='mmstepnet.StiffnessHook')]``. Each
    epoch gives

    - ``stiffness/tns``, ``stiffness/p_hat`` (the integral of the proportion
      of stiff blocks) and ``stiffness/nsi`` (mean over samples and blocks)
      in the epoch's log and in every visualizer backend,
    - ``stiffness/nsi/BLOCK``, the mean over samples, in the backends,
    - ``WORK_DIR/stiffness/stiffness_*.npz`` (see
      :func:`~mmstepnet.stiffness.load_record`) and its figures.

    Over several ranks the rows are those of one process: in the data set's
    order, without what the sampler added to fill up.

    Images of one batch that a data preprocessor pads to one size are
    measured as the network sees them, with the padding.

    Args:
        interval (int, optional): Measure every n-th validation of the run;
            None measures none. A test is always measured. Defaults to 1.
        max_samples (int, optional): Measure the first so many samples of the
            data set. None is all. Defaults to None.
        step (str): Reading of NSI that scalars and figures are made of:
            ``'adaptive'``, ``'unit'`` or ``'returned'``, see
            :class:`~mmstepnet.stiffness.TrajectoryRecorder`. The file holds
            all three. Defaults to ``'adaptive'``.
        train_interval (int, optional): Also measure every n-th training
            batch, whose mean NSI over all ranks is ``stiffness/nsi`` in the
            training log. None measures no training. Defaults to None.
        blocks (str | Sequence[str], optional): Names or patterns of blocks,
            see :class:`~mmstepnet.stiffness.TrajectoryRecorder`. Defaults to
            None, every known block of the backbone.
        figures (bool): Whether to draw. Defaults to True.

    Raises:
        ValueError: An argument is out of range.
    """

    priority = 'NORMAL'  # before LoggerHook, which writes the epoch's log

    def __init__(self,
                 interval: int | None = 1,
                 max_samples: int | None = None,
                 step: str = DEFAULT_READING,
                 train_interval: int | None = None,
                 blocks: str | Sequence[str] | None = None,
                 figures: bool = True):
        for name, value in (('interval', interval),
                            ('max_samples', max_samples),
                            ('train_interval', train_interval)):
            if value is not None and (not isinstance(value, int)
                                      or value < 1):
                raise ValueError(f'StiffnessHook: {name} must be a positive '
                                 f'integer, got {value!r}')
        if step not in READINGS:
            raise ValueError(f'StiffnessHook: step must be one of '
                             f'{", ".join(READINGS)}, got {step!r}')
        self.interval = interval
        self.max_samples = max_samples
        self.step = step
        self.train_interval = train_interval
        self.blocks = blocks
        self.figures = figures
        self._validations = 0
        self._recorder = None
        self._train_recorder = None

    # Validation and test

    def before_train(self, runner: Runner) -> None:
        """Count the validations of a run that was resumed."""
        loop = runner.train_loop
        if isinstance(loop, EpochBasedTrainLoop):
            done = runner.epoch
        elif isinstance(loop, IterBasedTrainLoop):
            done = runner.iter
        else:
            return
        every = loop.val_interval
        self._validations = max(0, done // every - (loop.val_begin - 1)
                                // every)

    def before_val_epoch(self, runner: Runner) -> None:
        """Begin to measure, at every ``interval``-th validation."""
        self._validations += 1
        self._recorder = None
        if self.interval and self._validations % self.interval == 0:
            self._begin_epoch(runner, runner.val_dataloader)
        else:
            # LoggerHook would repeat the last values.
            for name in list(runner.message_hub.log_scalars):
                if name.startswith(f'val/{PREFIX}/'):
                    runner.message_hub.log_scalars.pop(name)

    def before_test_epoch(self, runner: Runner) -> None:
        """Begin to measure."""
        self._begin_epoch(runner, runner.test_dataloader)

    def before_val_iter(self, runner: Runner, *args, **kwargs) -> None:
        """Measure the next ``val_step``."""
        self._measure_next(runner, 'val_step')

    def before_test_iter(self, runner: Runner, *args, **kwargs) -> None:
        """Measure the next ``test_step``."""
        self._measure_next(runner, 'test_step')

    def after_val_iter(self,
                       runner: Runner,
                       batch_idx: int,
                       data_batch: object = None,
                       outputs: Sequence = ()) -> None:
        """Check that each sample of the batch was measured once."""
        self._check_batch(len(outputs))

    def after_test_iter(self,
                        runner: Runner,
                        batch_idx: int,
                        data_batch: object = None,
                        outputs: Sequence = ()) -> None:
        """Check that each sample of the batch was measured once."""
        self._check_batch(len(outputs))

    def after_val_epoch(self,
                        runner: Runner,
                        metrics: dict | None = None) -> None:
        """Collect, log, save and draw."""
        self._end_epoch(runner, 'val', metrics)

    def after_test_epoch(self,
                         runner: Runner,
                         metrics: dict | None = None) -> None:
        """Collect, log, save and draw."""
        self._end_epoch(runner, 'test', metrics)

    # Training

    def before_train_iter(self, runner: Runner, *args, **kwargs) -> None:
        """Measure the next ``train_step``, at every ``train_interval``-th."""
        if self.train_interval and self.every_n_train_iters(
                runner, self.train_interval):
            if self._train_recorder is None:
                self._train_recorder = TrajectoryRecorder(
                    runner.model, self.blocks)
            self._train_recorder.clear()
            _record_once(runner, 'train_step', self._train_recorder)

    def after_train_iter(self, runner: Runner, *args, **kwargs) -> None:
        """Log the batch's mean NSI."""
        if self.train_interval and self.every_n_train_iters(
                runner, self.train_interval):
            nsi = self._train_recorder.record[self.step].double()
            sums = torch.stack([nsi.sum(), torch.tensor(float(nsi.numel()))])
            sums = sums.to(next(runner.model.parameters()).device)
            all_reduce(sums)
            runner.message_hub.update_scalar(f'train/{PREFIX}/nsi',
                                             (sums[0] / sums[1]).item())

    def _begin_epoch(self, runner: Runner, dataloader: DataLoader) -> None:
        model = runner.model
        if isinstance(model, BaseTTAModel):
            raise ValueError(
                'StiffnessHook: test-time augmentation passes each sample '
                'several times; leave out the hook or the augmentation')
        size = len(dataloader.dataset)
        if size == 0:
            raise ValueError('StiffnessHook: the data set is empty')
        if dataloader.drop_last or getattr(
                dataloader.batch_sampler, 'drop_last', False):
            raise ValueError(
                'StiffnessHook: the dataloader leaves samples out of its '
                'last batch; set drop_last=False in it, as an evaluation '
                'needs')
        self._size = min(size, self.max_samples or size)
        self._recorder = TrajectoryRecorder(model, self.blocks)
        self._measured = 0
        recorder = self._recorder
        runner.logger.info(
            f'StiffnessHook measures {len(recorder.blocks)} residual steps '
            f'and leaves out the first block of each stage: '
            f'{", ".join(recorder.excluded)}')
        if len(recorder.blocks) == len(recorder.stages.unique()):
            runner.logger.warning(
                'StiffnessHook: with one block a stage left, TNS is 0 by '
                'definition; compare deeper networks')

    @property
    def _rank_size(self) -> int:
        """Samples that this rank contributes."""
        return -(-self._size // get_world_size())

    def _measure_next(self, runner: Runner, name: str) -> None:
        if (self._recorder is not None
                and len(self._recorder) < self._rank_size):
            self._measured = len(self._recorder)
            _record_once(runner, name, self._recorder)
        else:
            self._measured = None

    def _check_batch(self, samples: int) -> None:
        if self._recorder is None or self._measured is None:
            return
        rows = len(self._recorder) - self._measured
        if rows != samples:
            raise RuntimeError(
                f'StiffnessHook: the blocks saw {rows} samples where the '
                f'model returned {samples}. A model that passes an image '
                f'several times, or in parts, has no trajectory per sample; '
                f'choose other blocks by blocks=, or leave out the hook')

    def _end_epoch(self, runner: Runner, split: str,
                   metrics: dict | None) -> None:
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            return
        record = recorder.record
        rows = torch.stack([record[name] for name in FIELDS], 1)
        # mmengine's sampler deals samples to ranks like cards.
        rows = collect_results(
            list(rows[:self._rank_size].numpy()), self._size, device='gpu')
        outcome = [None]
        if is_main_process():
            try:
                record = self._restore(rows)
                outcome = [self._summarize(record[self.step], recorder)]
            except ValueError as error:
                outcome = [error]  # on every rank, or the others would wait
        broadcast_object_list(outcome)
        scalars, = outcome
        if isinstance(scalars, ValueError):
            raise scalars
        for name, value in scalars.items():
            runner.message_hub.update_scalar(f'{split}/{name}', value)
        if is_main_process():
            self._save(runner, split, recorder, record, scalars, metrics)

    def _restore(self, rows: list) -> dict[str, Tensor]:
        if len(rows) != self._size:
            raise ValueError(
                f'StiffnessHook: {len(rows)} samples were measured, expected '
                f'{self._size}: samplers must give every rank equally many '
                f'(round_up=True)')
        values = torch.stack([torch.from_numpy(row) for row in rows], 1)
        return dict(zip(FIELDS, values))

    def _summarize(self, nsi: Tensor,
                   recorder: TrajectoryRecorder) -> dict[str, float]:
        stages = recorder.stages
        return {
            f'{PREFIX}/tns':
            total_neural_stiffness(nsi, stages).mean().item(),
            f'{PREFIX}/p_hat':
            total_stiffness_proportion(nsi, stages).mean().item(),
            f'{PREFIX}/nsi':
            nsi.double().mean().item(),
        }

    def _save(self, runner: Runner, split: str, recorder: TrajectoryRecorder,
              record: dict, scalars: dict, metrics: dict | None) -> None:
        when = _progress(runner)
        step = next(iter(when.values()), 0)
        blocks = {
            f'{PREFIX}/nsi/{block}': value.item()
            for block, value in zip(recorder.blocks,
                                    record[self.step].double().mean(0))
        }
        # LoggerHook shows the scalars of a validation, but not of a test.
        runner.visualizer.add_scalars(
            {**blocks, **(scalars if split == 'test' else {})}, step=step)
        name = '_'.join([PREFIX, split] +
                        [f'{k}_{v}' for k, v in list(when.items())[:1]])
        path = Path(runner.work_dir, PREFIX, f'{name}.npz')
        save_record(
            path,
            **record,
            stages=recorder.stages,
            blocks=recorder.blocks,
            excluded=recorder.excluded,
            settings={
                'model': _model_name(runner),
                'split': split,
                'reading': self.step,
                'dataset_size': self._size,
                **when,
                'metrics': {
                    k: float(v)
                    for k, v in (metrics or {}).items()
                    if isinstance(v, (int, float))
                },
            })
        if self.figures:
            # Drawing libraries are slow to import.
            from mmstepnet.figures import save_stiffness_figures
            save_stiffness_figures(path, path.parent, self.step)
        runner.logger.info(f'Stiffness of {self._size} samples: {path}')


def _record_once(runner: Runner, name: str,
                 recorder: TrajectoryRecorder) -> None:
    """Record the model's next call of ``name``, a step of the runner's.

    Hooks on modules so last as long as that call, whatever it raises, and an
    error elsewhere in the loop leaves none behind.
    """
    model = runner.model
    own = model.__dict__.get(name)  # such as a compiled train_step
    step = getattr(model, name)

    def recorded_step(*args, **kwargs):
        if own is None:
            delattr(model, name)
        else:
            setattr(model, name, own)
        with recorder:
            return step(*args, **kwargs)

    setattr(model, name, recorded_step)


def _progress(runner: Runner) -> dict[str, int]:
    """Epochs and iterations trained, if any, the one that counts first."""
    # Asking the runner builds its training loop, data and all.
    if (runner._train_loop is None or isinstance(runner._train_loop, dict)
            or runner.iter == 0):
        return {}
    if isinstance(runner.train_loop, EpochBasedTrainLoop):
        return {'epoch': runner.epoch, 'iter': runner.iter}
    return {'iter': runner.iter}


def _model_name(runner: Runner) -> str:
    if getattr(runner.cfg, 'filename', None):
        return Path(runner.cfg.filename).stem
    return type(unwrap(runner.model)).__name__
