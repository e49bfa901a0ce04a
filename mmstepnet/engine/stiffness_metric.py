"""Collecting the stiffness that the ranks of a job have measured."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn as nn
from mmengine.dist import get_world_size
from mmengine.evaluator import BaseMetric
from mmengine.model import BaseTTAModel
from mmengine.runner import EpochBasedTrainLoop, Runner

from mmstepnet.stiffness import (
    FIELDS,
    MEANS,
    READINGS,
    Trajectories,
    TrajectoryRecorder,
)
from mmstepnet.tracing import Selection, unwrap

PREFIX = 'stiffness'
"""Of the scalars' names, the folder and the files."""


class LenientRecorder(TrajectoryRecorder):
    """Recorder that lets the model go on where it cannot measure.

    It leaves out samples without a finite index, and passes that it cannot
    measure. Where the model passes its samples several times at once, as with
    flips at test time, it takes the first time. Of a model for test-time
    augmentation it records the model inside.

    Attributes:
        left_out (dict[int, str]): Samples of the last pass that were left
            out, and why.
        failed (str, optional): Why the last pass was not measured.
        repeated (bool): Whether any sample passed several times.
    """

    def __init__(self, model: nn.Module, blocks: Selection | None = None):
        model = unwrap(model)
        self.repeated = isinstance(model, BaseTTAModel)
        super().__init__(
            model.module if self.repeated else model,
            blocks,
            on_bad=self._leave_out,
            on_repeated=self._repeat,
        )

    def start(self, once: bool = False) -> None:
        """Begin, or continue, see :meth:`TrajectoryRecorder.start`."""
        self.last = 0
        self.left_out: dict[int, str] = {}
        self.failed: str | None = None
        super().start(once=once)

    def _leave_out(self, bad: dict[int, str] | Exception) -> None:
        if isinstance(bad, Exception):  # a diagnosis never ends a job
            self.failed = str(bad)
        else:
            self.left_out = bad

    def _repeat(self) -> None:
        self.repeated = True


class StiffnessMetric(BaseMetric):
    """Collects what a recorder measures, over ranks in the data's order.

    Samples that cannot be measured, as those of NaN or those that the loop
    does not reach, are left out and named in the settings as ``left_out``.

    Args:
        recorder (LenientRecorder): Records the model of this rank.
        size (int): Samples to measure, on all ranks together.
        settings (dict): Of the recording, see
            :class:`~mmstepnet.stiffness.Trajectories`.

    Attributes:
        trajectories (Trajectories, optional): The recording, on the main
            process after :meth:`evaluate`; None where nothing could be
            measured.
    """

    default_prefix = PREFIX

    def __init__(self, recorder: LenientRecorder, size: int, settings: dict):
        super().__init__(collect_device='gpu')  # not by way of files
        self.recorder = recorder
        self.size = size
        self.settings = settings
        self.measured = 0
        self._left_out: dict[int, str] = {}
        self.trajectories: Trajectories | None = None

    @property
    def recorded(self) -> int:
        """Number of samples that were measured and not left out."""
        return self.measured - len(self._left_out)

    @property
    def complete(self) -> bool:
        """Whether this rank has measured all that it contributes."""
        return self.measured >= self._share

    @property
    def _share(self) -> int:
        """Number of samples of this rank."""
        # mmengine's sampler deals samples to ranks like cards.
        return -(-self.size // get_world_size())

    def process(
        self, data_batch: object, data_samples: Sequence
    ) -> str | None:
        """Count the samples of a batch, and see whether each was recorded.

        Returns:
            str | None: Why they are left out, if they are.
        """
        recorder = self.recorder
        size = len(data_samples)
        without = recorder.left_out
        failed = recorder.failed
        if failed is None and recorder.last != size:
            failed = (
                f'the blocks saw {recorder.last} samples where the '
                f'model returned {size}: it passes an image in parts, '
                f'or several times; choose other blocks by blocks='
            )
            if recorder.last:
                recorder.drop_last()
        if failed is not None:
            without = dict.fromkeys(range(size), failed)
        self._left_out.update(
            (
                self.measured + k,
                str(
                    getattr(
                        data_samples[k],
                        'img_path',
                        f'sample {self.measured + k}',
                    )
                ),
            )
            for k in without
        )
        self.measured += size
        return next(iter(without.values()), None)

    def evaluate(self, size: int) -> dict[str, float]:
        """Collect what the ranks recorded."""
        for k in range(self.measured, self._share):  # the loop ended early
            self._left_out[k] = f'sample {k}'
        self.measured = max(self.measured, self._share)
        rows = iter(())
        if len(self.recorder):
            record = self.recorder.record
            rows = iter(
                torch.stack([record[name] for name in FIELDS], 1).numpy()
            )
        self.results = [
            self._left_out.get(k) or next(rows) for k in range(self.measured)
        ]
        return super().evaluate(size)

    def compute_metrics(self, results: list) -> dict[str, float]:
        """TNS in every reading and with both means, and the rest of one."""
        left_out = [name for name in results if isinstance(name, str)]
        results = [row for row in results if not isinstance(row, str)]
        if left_out:
            self.settings = dict(self.settings, left_out=left_out)
        if not results or not len(self.recorder):
            return {}
        fields = dict(zip(FIELDS, np.stack(results, 1)))
        recorder = self.recorder
        reading = self.settings['reading']
        self.trajectories = found = Trajectories(
            **fields,
            stages=recorder.stages,
            blocks=recorder.blocks,
            excluded=recorder.excluded,
            settings=self.settings,
        )
        scalars = {'nsi': float(found.nsi(reading).mean(dtype=np.float64))}
        for name in READINGS:
            for mu in MEANS[1:]:
                scalars[f'tns_{name}_{mu}'] = found.tns(name, mu)
        if has_one_block_a_stage(recorder):
            return scalars  # the others are 0 by definition
        scalars = dict(
            tns=found.tns(reading), p_hat=found.proportion(reading), **scalars
        )
        for name in READINGS:
            scalars[f'tns_{name}'] = found.tns(name)
        return scalars


def has_one_block_a_stage(recorder: TrajectoryRecorder) -> bool:
    """Whether each index is the mean of its stage, so that TNS is 0."""
    return len(recorder.blocks) == len(recorder.stages.unique())


def describe(
    runner: Runner, split: str, reading: str, size: int
) -> dict[str, Any]:
    """Settings of a recording of the runner's model.

    Args:
        runner (Runner): The runner.
        split (str): ``'val'`` or ``'test'``.
        reading (str): Reading of NSI that is shown.
        size (int): Number of samples.

    Returns:
        dict: ``model``, ``split``, ``reading`` and ``dataset_size``, and, in
        a training, ``epoch`` and ``iter``.
    """
    name = (
        Path(runner.cfg.filename).stem
        if getattr(runner.cfg, 'filename', None)
        else type(unwrap(runner.model)).__name__
    )
    settings = dict(
        model=name, split=split, reading=reading, dataset_size=size
    )
    # Asking the runner builds its training loop, data and all.
    if (
        runner._train_loop is None
        or isinstance(runner._train_loop, dict)
        or runner.iter == 0
    ):
        return settings
    if isinstance(runner.train_loop, EpochBasedTrainLoop):
        settings['epoch'] = runner.epoch
    return dict(settings, iter=runner.iter)
