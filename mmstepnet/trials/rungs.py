"""The rungs: what is put into a frozen network, and what of it is trained."""

from collections.abc import Callable, Iterable
from typing import Any

import torch.nn as nn
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from mmstepnet.attentions import Attention
from mmstepnet.steps import insert_steps, step_parameters

Rung = str | type | Callable[[nn.Module], Iterable[nn.Parameter]]
"""One of :data:`RUNGS`, an attention or its name, or a function that changes a
model in place and returns what is trained beside the head."""

GATES = {'layer-scale': 'LayerScale', 'stepnet': 'StepNet', 'se': 'SE'}
RUNGS = 'head', 'norms', *GATES
QUESTIONS = {
    ('layer-scale', 'head'): 'a constant a channel is {} the head alone',
    ('stepnet', 'layer-scale'): 'StepNet is {} the constant',
}
"""Differences that are asked before anything is trained, and the answers."""

NORMS = _BatchNorm, nn.LayerNorm, nn.GroupNorm


def put_in(
    model: nn.Module, rung: Any, blocks: list[str], example: Tensor
) -> list[nn.Parameter]:
    """Put a rung into a model, in place.

    Args:
        model (nn.Module): The model, frozen and in evaluation mode. Gates are
            in training mode afterwards.
        rung (Rung): The rung.
        blocks (list[str]): Names of the blocks in which it stands.
        example (Tensor): One picture, (1, C, H, W).

    Returns:
        list: The parameters that are trained beside the head.

    Raises:
        ValueError: A block has no norm, or takes no such attention.
    """
    if rung == 'head':
        return []
    if rung == 'norms':
        return norm_parameters(model, blocks)
    if not isinstance(rung, (str, type)):
        return [*rung(model)]
    attention = GATES.get(str(rung), rung)
    insert_steps(model, attention, blocks=blocks, example=example)
    for module in model.modules():
        if isinstance(module, Attention):
            module.train()
    return step_parameters(model)[1]['params']


def norm_parameters(model: nn.Module, blocks: list[str]) -> list[nn.Parameter]:
    """γ and β of the last norm of each block."""
    found: list[nn.Parameter] = []
    for name in blocks:
        modules = model.get_submodule(name).modules()
        norms = [m for m in modules if isinstance(m, NORMS)]
        if not norms:
            raise ValueError(f'{name} has no norm; leave the rung norms out')
        found += norms[-1].parameters()
    return found


def has_gates(model: nn.Module) -> bool:
    """Whether there are attentions in a model."""
    return any(isinstance(m, Attention) for m in model.modules())


def scores_of(model: nn.Module, images: Tensor) -> Any:
    """Scores of classes, (N, K), on the model's device and in its dtype."""
    out: Any = model(images.to(next(model.parameters())))
    return getattr(out, 'logits', out)
