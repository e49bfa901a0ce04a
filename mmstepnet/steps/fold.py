"""Folding for inference: what does not look at the image goes into weights.

StepNet's adaptor becomes a line and a sigmoid, a constant step a part of the
layer before it.
"""

import copy
from typing import Any

import torch
import torch.nn as nn
from torch import Tensor

from mmstepnet.attentions import FoldedStepNet, LayerScale, OursNoNorm, StepNet
from mmstepnet.tracing.wrappers import name_modules

from .freezing import follow_training
from .fused_blocks import FusedBlock
from .givers import find_givers, is_scalable
from .insert import take_out_steps
from .modules import check_unsharded, modules_by_name, steps_of
from .residual import ResidualStep
from .tail.dispatch import is_as_made


def fold(
    model: nn.Module, example: Tensor | tuple | dict | None = None
) -> nn.Module:
    """Fold the gates of a model; the outputs stay those of ``eval()``.

    Each StepNet adaptor becomes :class:`FoldedStepNet`, three numbers a
    channel. A ``LayerScale`` goes into the weights of the norm, the linear
    layer or the convolution that returns f. It stays where no such layer
    alone gives f, or where others use the layer, its weights or its output.
    A block that is left without an attention is the host's again.
    Convolutions and norms are left to those who run or export the network.
    The result cannot be trained on. Other attentions stay.

    Args:
        model (nn.Module): A model with residual steps. It is left as it was.
        example (Tensor | tuple | dict, optional): What the model is called
            with, see :func:`insert_steps`. It runs where a ``LayerScale``
            stands in other blocks than a ResNet's. Defaults to None.

    Returns:
        nn.Module: A folded copy, in eval mode.

    Raises:
        TypeError: There is no :class:`ResidualStep` in ``model``.
        ValueError: The model has to run and does not run on the example.
        RuntimeError: The model is in DDP or FSDP.
    """
    if not any(isinstance(m, ResidualStep) for m in model.modules()):
        raise TypeError(
            f'fold expects a model with residual steps, such as StepResNet or '
            f'what insert_steps made, got {type(model).__name__}'
        )
    check_unsharded(name_modules(model))
    model = copy.deepcopy(model)
    follow_training(model.modules())  # back to classes that are known
    model.train(False)  # eval() of some hosts returns nothing
    for module in list(model.modules()):
        if isinstance(module, ResidualStep) and _is_foldable(module.attention):
            module.attention = FoldedStepNet(module.attention)
    _fold_constants(model, example)
    return model


def _is_foldable(attention: Any) -> bool:
    """Whether it is StepNet's adaptor that is nothing else."""
    if (
        type(attention) not in (StepNet, OursNoNorm)
        or (attention.iebn != 'appendix')
        or not all(map(is_as_made, attention.modules()))
    ):
        return False
    norm = attention.bn
    return type(norm) is nn.Identity or (
        type(norm) in (nn.BatchNorm1d, nn.SyncBatchNorm)
        and norm.running_mean is not None
    )


def _is_constant(attention: Any) -> bool:
    """Whether it is a constant step that is nothing else."""
    return type(attention) is LayerScale and is_as_made(attention)


def _fold_constants(model: nn.Module, example: object) -> None:
    """Multiply constant steps into the layers before them, in place."""
    constants = {
        step: block
        for block in modules_by_name(model).values()
        for step in steps_of(block)
        if _is_constant(step.attention)
    }
    if not constants:
        return
    # What a ResNet's block ends in is known; the others run to show it.
    layers = {
        step: block.last_layer()
        for step, block in constants.items()
        if isinstance(block, FusedBlock)
    }
    others = constants.keys() - layers.keys()
    if others:
        layers |= find_givers(model, others, example)
    for step, layer in layers.items():
        if is_scalable(layer, model):
            gate: Any = step.attention
            _scale(layer, gate.weight.expand(gate.channels))
            step.attention = None
    for block in set(constants.values()):
        # Some of its steps alone: code that was compiled for all would run.
        steps = steps_of(block)
        if all(step.attention is None for step in steps):
            take_out_steps(block)


@torch.no_grad()
def _scale(layer: Any, factors: Tensor) -> None:
    """Let a layer return a multiple of each channel.

    Args:
        layer (nn.Module): A layer that is scalable.
        factors (Tensor): One of each channel, (C, ).
    """
    for weights in (layer.weight, layer.bias):
        if weights is not None:
            # In the wider of both types, and rounded once.
            weights.copy_(
                weights * factors.view(-1, *[1] * (weights.dim() - 1))
            )
