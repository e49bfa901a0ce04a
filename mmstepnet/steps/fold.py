"""Folding for inference: StepNet's adaptor becomes a line and a sigmoid."""

import copy
from typing import Any

import torch.nn as nn

from mmstepnet.attentions import FoldedStepNet, OursNoNorm, StepNet

from .modules import check_unsharded
from .residual import ResidualStep
from .tail.dispatch import is_as_made


def fold(model: nn.Module) -> nn.Module:
    """Fold the gates of a model; the outputs stay those of ``eval()``.

    Each StepNet adaptor becomes :class:`FoldedStepNet`, three numbers a
    channel. Convolutions and norms are left to those who run or export the
    network. The result cannot be trained on. Other attentions stay.

    Args:
        model (nn.Module): A model with residual steps. It is left as it was.

    Returns:
        nn.Module: A folded copy, in eval mode.

    Raises:
        TypeError: There is no :class:`ResidualStep` in ``model``.
        RuntimeError: The model is in DDP or FSDP.
    """
    if not any(isinstance(m, ResidualStep) for m in model.modules()):
        raise TypeError(
            f'fold expects a model with residual steps, such as StepResNet or '
            f'what insert_steps made, got {type(model).__name__}')
    check_unsharded(model)
    model = copy.deepcopy(model)
    for module in list(model.modules()):
        if isinstance(module, ResidualStep) and _is_foldable(
                module.attention):
            module.attention = FoldedStepNet(module.attention)
    model.train(False)  # eval() of some hosts returns nothing
    return model


def _is_foldable(attention: Any) -> bool:
    """Whether it is StepNet's adaptor that is nothing else."""
    if type(attention) not in (StepNet, OursNoNorm) or (
            attention.iebn != 'appendix') or not all(
            map(is_as_made, attention.modules())):
        return False
    norm = attention.bn
    return type(norm) is nn.Identity or (
        type(norm) in (nn.BatchNorm1d, nn.SyncBatchNorm)
        and norm.running_mean is not None)
