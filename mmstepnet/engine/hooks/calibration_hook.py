"""Calibration of the attentions' batch norms before training."""

from itertools import islice

import torch
import torch.nn as nn
from mmengine.dist import all_reduce
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.runner import Runner
from mmengine.utils.dl_utils.parrots_wrapper import _BatchNorm
from torch import Tensor
from torch.utils.data import DataLoader

from mmstepnet.attentions import Attention
from mmstepnet.attentions.base import check_positive
from mmstepnet.registry import HOOKS
from mmstepnet.steps.finding import EAGER


@HOOKS.register_module()
class AttentionBNCalibrationHook(Hook):
    """Give new attentions' BNs their running statistics before training.

    With ``norm_eval=True``, as in detection, an attention put into a
    pretrained backbone would keep mean 0 and variance 1 for ever. Before the
    first iteration this hook runs some training batches without gradients
    and sets the statistics of every attention BN that has not seen data yet
    (``num_batches_tracked == 0``) to those of all pooled vectors together,
    over all ranks. That is exact where the gate is constant at that moment,
    so that it does not change the features that it will see: StepNet's is,
    and with ``init_step`` every attention's. Where the BN would be given
    features without any spread (SRM's without ``init_step``), its variance
    would be 0 and the first step of training enlarged without bound: that is
    an error. A single channel without spread keeps its variance.

    A BN that comes with statistics, from a resumed job or an ImageNet
    checkpoint trained with the attention, is left alone, and so is that of an
    attention whose parameters are all frozen.

    Args:
        num_batches (int): Training batches to run. Defaults to 50.
    """

    def __init__(self, num_batches: int = 50):
        check_positive('AttentionBNCalibrationHook', num_batches=num_batches)
        self.num_batches = num_batches

    def before_train(self, runner: Runner) -> None:
        """Calibrate, see the class."""
        model = runner.model
        if is_model_wrapper(model):
            model = model.module
        norms = [
            norm for attention in model.modules()
            if isinstance(attention, Attention)
            and any(p.requires_grad for p in attention.parameters())
            for norm in attention.modules() if isinstance(norm, _BatchNorm)
            and norm.num_batches_tracked == 0
        ]
        if not norms:
            runner.logger.info('AttentionBNCalibrationHook: no attention BN '
                               'without statistics, nothing to calibrate')
            return
        dataloader = _fresh_dataloader(runner)
        sums = [_Moments(norm.num_features) for norm in norms]
        handles = [
            norm.register_forward_pre_hook(moments.add)
            for norm, moments in zip(norms, sums)
        ]
        was_training = model.training
        model.eval()
        batches = 0
        try:
            # Compiled code passes hooks by.
            with EAGER, torch.no_grad():
                for data in islice(dataloader, self.num_batches):
                    data = model.data_preprocessor(data, training=True)
                    model.extract_feat(data['inputs'])
                    batches += 1
        finally:
            for handle in handles:
                handle.remove()
            model.train(was_training)
        for norm, moments in zip(norms, sums):
            moments.write_to(norm, batches)
        runner.logger.info(
            f'AttentionBNCalibrationHook: set the statistics of {len(norms)} '
            f'attention BNs from {batches} batches a process')


def _fresh_dataloader(runner: Runner) -> DataLoader:
    """A second loader over the training data set.

    Leaving the runner's own one half-way would upset its samplers: mmdet's
    AspectRatioBatchSampler keeps what it has not handed out, ranks then count
    different numbers of batches, and a distributed job hangs.
    """
    cfg = runner.cfg.get('train_dataloader')
    if cfg is None:
        raise ValueError('AttentionBNCalibrationHook needs a runner that was '
                         'built with train_dataloader in its config')
    return runner.build_dataloader({
        **cfg, 'dataset': runner.train_dataloader.dataset,
        'persistent_workers': False
    }, seed=runner.seed)


class _Moments:
    """Sums over everything a norm was given, in float64."""

    def __init__(self, channels: int):
        # Count, sum and sum of squares, in one tensor for one all_reduce.
        self.sums = torch.zeros(2 * channels + 1, dtype=torch.float64)

    def add(self, module: nn.Module, inputs: tuple[Tensor]) -> None:
        values = inputs[0].detach().double().transpose(0, 1).flatten(1)
        self.sums += torch.cat([
            values.new_tensor([values.shape[1]]),
            values.sum(1),
            values.square().sum(1)
        ]).cpu()

    def write_to(self, norm: _BatchNorm, batches: int) -> None:
        sums = self.sums.to(norm.running_mean.device)
        all_reduce(sums)
        count, total, squares = sums[0], *sums[1:].chunk(2)
        if count < 2:
            raise ValueError(
                'AttentionBNCalibrationHook saw '
                f'{int(count)} pooled vectors and needs at least 2: is the '
                'training data set empty?')
        if not sums.isfinite().all():
            raise ValueError(
                'AttentionBNCalibrationHook: an attention was given NaN or '
                'infinite features by the training data; look at the '
                'images and at the checkpoint that was loaded')
        mean = total / count
        variance = (squares - count * mean.square()) / (count - 1)
        # Below it is what rounding to float32 makes of one value.
        spread = variance > torch.finfo(torch.float32).eps**2 * mean.square()
        if not spread.any():
            raise ValueError(
                'AttentionBNCalibrationHook: an attention gives its BN the '
                'same value for every image, from which no variance can be '
                'set; give the attention init_step=1.0, with which it starts '
                'from what it sees')
        norm.running_mean.copy_(mean)
        norm.running_var.copy_(
            torch.where(spread, variance, norm.running_var))
        norm.num_batches_tracked.fill_(batches)
