"""Calibration of the attentions' batch norms before training."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch.nn as nn
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch.utils.data import DataLoader

from mmstepnet.checks import check_positive
from mmstepnet.registry import HOOKS
from mmstepnet.steps.calibration import calibrate
from mmstepnet.tracing import unwrap


@HOOKS.register_module()
class AttentionBNCalibrationHook(Hook):
    """Give new attentions' BNs their running statistics before training.

    With ``norm_eval=True``, as in detection, an attention put into a
    pretrained backbone would keep mean 0 and variance 1 for ever. Before the
    first iteration this hook runs some training batches for
    :func:`mmstepnet.calibrate`. A BN that comes with statistics, from a
    resumed job or an ImageNet checkpoint trained with the attention, is left
    alone. Where the data are branches, as of SoftTeacher, the model's loss is
    run, and the gates of its frozen teacher are calibrated, too.

    Args:
        num_batches (int): Training batches to run. Defaults to 50.
    """

    def __init__(self, num_batches: int = 50):
        check_positive('AttentionBNCalibrationHook', num_batches=num_batches)
        self.num_batches = num_batches

    def before_train(self, runner: Runner) -> None:
        """Calibrate, see the class."""
        calibrated = calibrate(
            unwrap(runner.model), self._batches(runner), forward=_run
        )
        runner.logger.info(
            f'AttentionBNCalibrationHook: {calibrated} BNs of attentions got '
            f'statistics from data'
        )

    def _batches(self, runner: Runner) -> Iterator[Any]:
        yield from islice(_fresh_dataloader(runner), self.num_batches)


def _run(model: nn.Module, batch: Any) -> None:
    """Run all that has gates."""
    batch = model.data_preprocessor(batch, training=True)
    if isinstance(batch.get('data_samples'), dict):
        # Branches: which of student and teacher gets which, the loss knows.
        model.loss(batch['inputs'], batch['data_samples'])
    else:
        model.extract_feat(batch['inputs'])


def _fresh_dataloader(runner: Runner) -> DataLoader:
    """A second loader over the training data set.

    Leaving the runner's own one half-way would upset its samplers: mmdet's
    AspectRatioBatchSampler keeps what it has not handed out, ranks then count
    different numbers of batches, and a distributed job hangs.
    """
    cfg = runner.cfg.get('train_dataloader')
    if cfg is None:
        raise ValueError(
            'AttentionBNCalibrationHook needs a runner that was '
            'built with train_dataloader in its config'
        )
    return runner.build_dataloader(
        {
            **cfg,
            'dataset': runner.train_dataloader.dataset,
            'persistent_workers': False,
        },
        seed=runner.seed,
    )
