"""Stiffness of a model over batches."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn as nn

from mmstepnet.steps.examples import run_batch
from mmstepnet.steps.finding import Selection, in_mode

from .recorder import TrajectoryRecorder
from .trajectories import Trajectories


def measure_stiffness(model: nn.Module, batches: Iterable[Any], /, *,
                      blocks: Selection | None = None,
                      forward: Callable[[nn.Module, Any], Any] | None = None,
                      **settings: Any) -> Trajectories:
    """Record a model in eval mode; modes are restored afterwards.

    Args:
        model (nn.Module): The model.
        batches (Iterable): What it is called with: tensors, tuples of its
            arguments, or dicts of these by name.
        blocks (optional): See :class:`TrajectoryRecorder`. Defaults to None.
        forward (Callable, optional): ``forward(model, batch)`` runs the model
            instead, on batches of any kind. Defaults to None.
        **settings: What the recording says of itself, see
            :meth:`TrajectoryRecorder.trajectories`.

    Raises:
        RuntimeError: There was no batch.
        ValueError: No residual step was found.

    Example:
        >>> import torch
        >>> from torchvision.models import resnet18
        >>> from mmstepnet import measure_stiffness
        >>> found = measure_stiffness(resnet18(), [torch.rand(2, 3, 64, 64)])
        >>> found.blocks
        ['layer1.1', 'layer2.1', 'layer3.1', 'layer4.1']
    """
    with in_mode(model, False), torch.inference_mode(), (
            TrajectoryRecorder(model, blocks)) as recorder:
        for batch in batches:
            (forward or run_batch)(model, batch)
    return recorder.trajectories(**settings)
