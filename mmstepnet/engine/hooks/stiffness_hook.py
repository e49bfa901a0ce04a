"""Stiffness of a model on the data that a runner evaluates it on."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import mmcv
import numpy as np
from mmengine.hooks import Hook
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop, Runner
from mmengine.visualization import LocalVisBackend
from torch.utils.data import DataLoader

from mmstepnet.checks import check_choice, check_positive
from mmstepnet.engine.stiffness_metric import (
    PREFIX,
    LenientRecorder,
    StiffnessMetric,
    describe,
    has_one_block_a_stage,
)
from mmstepnet.registry import HOOKS
from mmstepnet.stiffness import DEFAULT_READING, READINGS, Trajectories


@HOOKS.register_module()
class StiffnessHook(Hook):
    """Measure stiffness in validation and test.

    Works with every model in which
    :class:`~mmstepnet.stiffness.TrajectoryRecorder` finds residual steps, in
    any mmengine runner:
    ``custom_hooks=[dict(type='mmstepnet.StiffnessHook')]``. Each epoch gives

    - ``stiffness/tns``, ``stiffness/p_hat`` (the integral of the proportion
      of stiff blocks) and ``stiffness/nsi`` (mean over samples and blocks)
      in the reading that ``reading`` chooses,
    - ``stiffness/tns_adaptive``, ``stiffness/tns_unit`` and
      ``stiffness/tns_returned``, TNS in each reading with the mean of the
      stage (Definition 2), and the same with the mean of all blocks (Eq. 15)
      as ``stiffness/tns_adaptive_all`` etc., all of these in the epoch's
      log, in every visualizer backend and in the metrics of a test; without
      those that are 0 by definition where a stage has one block left,
    - ``stiffness/nsi/BLOCK``, the mean over samples, in the backends,
    - ``WORK_DIR/stiffness/stiffness_*.npz`` (see
      :meth:`~mmstepnet.stiffness.Trajectories.load`) and its figures, which
      TensorBoard, W&B and other backends show as images.

    TNS of a network with IEBN is measured with the gates inside f and does
    not compare with that of the other attentions.

    Over several ranks the rows are those of one process: in the data set's
    order, without what the sampler added to fill up.

    Images of one batch that a data preprocessor pads to one size are
    measured as the network sees them, with the padding.

    A sample without a finite index, as one of NaN, is left out, counted and
    named, and so are the samples of a batch that cannot be measured. Where
    the model passes its images several times, as with flips at test time, the
    first pass is measured. Evaluation and training go on, also where nothing
    can be saved, drawn or shown. Blocks that are not there are an error, but
    only before the training begins.

    Args:
        interval (int, optional): Measure every n-th validation of the run;
            None measures none. A test is always measured. Defaults to 1.
        max_samples (int, optional): Measure the first so many samples of the
            data set. None is all. Defaults to None.
        reading (str): Reading of NSI that scalars and figures are made of:
            ``'adaptive'``, ``'unit'`` or ``'returned'``, see
            :class:`~mmstepnet.stiffness.TrajectoryRecorder`. The file holds
            all three. Defaults to ``'adaptive'``.
        blocks (str | type | Sequence, optional): The blocks, see
            :class:`~mmstepnet.stiffness.TrajectoryRecorder`. Defaults to
            None, all that are found in the backbone.
        figures (bool): Whether to draw. Defaults to True.

    Raises:
        ValueError: An argument is out of range.
    """

    priority = 'NORMAL'  # before LoggerHook, which writes the epoch's log

    def __init__(
        self,
        interval: int | None = 1,
        max_samples: int | None = None,
        reading: str = DEFAULT_READING,
        blocks: str | Sequence[str] | None = None,
        figures: bool = True,
    ):
        numbers = dict(interval=interval, max_samples=max_samples)
        check_positive(
            'StiffnessHook',
            **{name: n for name, n in numbers.items() if n is not None},
        )
        check_choice('StiffnessHook: reading', reading, READINGS)
        self.interval = interval
        self.max_samples = max_samples
        self.reading = reading
        self.blocks = blocks
        self.figures = figures
        self._validations = 0
        self._metric: StiffnessMetric | None = None
        self._said: set[str] = set()

    def before_train(self, runner: Runner) -> None:
        """Refuse blocks that could not be measured after the first epoch.

        And count the validations of a run that was resumed.
        """
        if self.interval and runner.val_loop is not None:
            LenientRecorder(runner.model, self.blocks)
        loop = runner.train_loop
        if isinstance(loop, EpochBasedTrainLoop | IterBasedTrainLoop):
            done = (
                runner.epoch
                if isinstance(loop, EpochBasedTrainLoop)
                else runner.iter
            )
            every = loop.val_interval
            self._validations = max(
                0, done // every - (loop.val_begin - 1) // every
            )

    def before_val_epoch(self, runner: Runner) -> None:
        """Begin to measure, at every ``interval``-th validation."""
        self._validations += 1
        self._stop()
        if self.interval and self._validations % self.interval == 0:
            self._begin_epoch(runner, runner.val_dataloader, 'val')
        else:
            # LoggerHook would repeat the last values.
            for name in list(runner.message_hub.log_scalars):
                if name.startswith(f'val/{PREFIX}/'):
                    runner.message_hub.log_scalars.pop(name)

    def before_test_epoch(self, runner: Runner) -> None:
        """Begin to measure."""
        self._stop()
        self._begin_epoch(runner, runner.test_dataloader, 'test')

    def before_val_iter(self, runner: Runner, *args, **kwargs) -> None:
        """Record the model's next pass."""
        if self._metric is not None and not self._metric.complete:
            self._metric.recorder.start(once=True)

    before_test_iter = before_val_iter

    def after_val_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: object = None,
        outputs: Sequence = (),
    ) -> None:
        """Check what was recorded."""
        if self._metric is not None and not self._metric.complete:
            self._metric.recorder.stop()
            first = not self._metric.recorded
            self._warn(runner, self._metric.process(data_batch, outputs))
            if first and self._metric.recorded:
                self._say_what_is_measured(runner, self._metric.recorder)

    after_test_iter = after_val_iter

    def after_val_epoch(
        self, runner: Runner, metrics: dict | None = None
    ) -> None:
        """Collect, log, save and draw."""
        metric = self._metric
        self._metric = None
        if metric is None:
            return
        scalars = metric.evaluate(metric.size)
        split = metric.settings['split']
        for name, value in scalars.items():
            runner.message_hub.update_scalar(f'{split}/{name}', value)
        left_out = metric.settings.get('left_out', ())
        if left_out:
            runner.logger.warning(
                f'StiffnessHook: {len(left_out)} of {metric.size} samples '
                f'could not be measured and are left out: '
                f'{", ".join(left_out[:5])}' + ', …' * (len(left_out) > 5)
            )
        if metric.trajectories is not None:
            metrics = {} if metrics is None else metrics
            numbers = {
                key: float(value)
                for key, value in metrics.items()
                if isinstance(value, int | float)
            }
            if split == 'test':  # of a validation, others choose by them
                metrics.update(scalars)
            self.save_and_draw(
                runner,
                replace(
                    metric.trajectories,
                    settings={**metric.settings, 'metrics': numbers},
                ),
                scalars,
            )

    after_test_epoch = after_val_epoch

    def save_and_draw(
        self,
        runner: Runner,
        trajectories: Trajectories,
        scalars: dict[str, float],
    ) -> None:
        """Show, save and draw what was measured; on the main process.

        Args:
            runner (Runner): The runner.
            trajectories (Trajectories): The recording.
            scalars (dict[str, float]): What the log shows of it.
        """
        settings = trajectories.settings
        split = settings['split']
        name = f'{PREFIX}_{settings["split"]}'
        when = next((k for k in ('epoch', 'iter') if k in settings), None)
        if when:
            name += f'_{when}_{settings[when]}'
        path = Path(runner.work_dir, PREFIX, f'{name}.npz')
        blocks = {
            f'{PREFIX}/nsi/{block}': value.item()
            for block, value in zip(
                trajectories.blocks,
                trajectories.nsi(self.reading).mean(0, dtype=np.float64),
            )
        }
        step = settings.get(when, 0)
        try:
            trajectories.save(path)
            runner.logger.info(
                f'Stiffness of {len(trajectories)} samples: {path}'
            )
            # LoggerHook shows the scalars of a validation, but not of a test.
            runner.visualizer.add_scalars(
                {**blocks, **(scalars if split == 'test' else {})}, step
            )
            if not self.figures:
                return
            # Drawing libraries are slow to import.
            from mmstepnet.figures import save_stiffness_figures

            for file in save_stiffness_figures(
                trajectories, path.parent, name, self.reading
            ):
                title = f'{split}_{file.stem.removeprefix(f"{name}_")}'
                image = mmcv.imread(file, channel_order='rgb')
                for backend in runner.visualizer._vis_backends.values():
                    if not isinstance(backend, LocalVisBackend):  # a copy
                        backend.add_image(f'{PREFIX}/{title}', image, step)
        except Exception as error:  # a full disk, a library, a lost network
            runner.logger.warning(
                f'StiffnessHook cannot save, draw or show {path}: '
                f'{type(error).__name__}: {error}'
            )

    def _stop(self) -> None:
        """Let go of an epoch that ended with an error."""
        if self._metric is not None:
            self._metric.recorder.stop()
        self._metric = None

    def _warn(self, runner: Runner, why: str | None) -> None:
        """Log each kind of reason once."""
        kind = why and why.partition(':')[0]
        if kind and kind not in self._said:
            self._said.add(kind)
            runner.logger.warning(
                f'StiffnessHook leaves out what it cannot measure: {why}'
            )

    def _begin_epoch(
        self, runner: Runner, dataloader: DataLoader, split: str
    ) -> None:
        size = len(dataloader.dataset)
        size = min(size, self.max_samples or size)
        self._metric = StiffnessMetric(
            LenientRecorder(runner.model, self.blocks),
            size,
            describe(runner, split, self.reading, size),
        )

    def _say_what_is_measured(
        self, runner: Runner, recorder: LenientRecorder
    ) -> None:
        without = (
            ' and leaves out the first block of each stage: '
            + ', '.join(recorder.excluded)
        ) * bool(recorder.excluded)
        measured = (
            f'StiffnessHook measures {len(recorder.blocks)} '
            f'residual steps{without}'
        )
        if measured in self._said:  # at an earlier validation
            return
        self._said.add(measured)
        runner.logger.info(measured)
        if recorder.repeated:
            runner.logger.warning(
                'StiffnessHook measures the first pass of each sample: the '
                'model passes it several times, flipped or in parts'
            )
        if has_one_block_a_stage(recorder):
            runner.logger.warning(
                'StiffnessHook: with one block a stage left, TNS is 0 by '
                'definition, so the log has only that with the mean of all '
                'blocks (tns_..._all); compare deeper networks'
            )
