"""The rungs: what is put into a network, and what of it is trained."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch.nn as nn

import mmstepnet

from .networks import head_of


class Rung(NamedTuple):
    """What is put in and trained; all else is frozen."""

    attention: dict | None = None
    """Arguments of :func:`mmstepnet.insert_steps`."""
    trained: tuple[str, ...] = ()
    """Parameters of the attention that are trained; none named is all."""
    norms: bool = False
    """Whether γ and β of the last norm of each of the blocks are trained."""
    head: bool = False
    """Whether the last linear layer is trained."""


NORMS = Rung(norms=True)
LAYER_SCALE = Rung(dict(attention='LayerScale'))
STEPNET = Rung(dict(attention='StepNet'))
RUNGS = {
    'stepnet': STEPNET,
    'layer-scale': LAYER_SCALE,
    'norms': NORMS,
    'layer-scale-block': Rung(dict(attention='LayerScale', shared=True)),
    'sigmoid-bias': Rung(dict(attention='StepNet'), ('ie_bias',)),
    'iebn-cited': Rung(dict(attention='StepNet', iebn='cited')),
    'se': Rung(dict(attention='SE')),
    'head': Rung(head=True),
    'norms-head': NORMS._replace(head=True),
    'layer-scale-head': LAYER_SCALE._replace(head=True),
    'stepnet-head': STEPNET._replace(head=True),
}
"""All rungs; the first three are those that verdicts rest on."""


class Start(NamedTuple):
    """Where a network starts that is trained from scratch, body and all."""

    gates: Rung = Rung()
    """What is put in. Of its gates, what the rung names is trained."""
    init_step: float | None = None
    """Where gates start; None is their own start."""
    norms: float = 1.0
    """Where γ of the last norm of each of the blocks starts."""


FROM_SCRATCH = {
    'stepnet': Start(STEPNET),
    'sigmoid-bias': Start(RUNGS['sigmoid-bias']),
    'norms-start': Start(norms=1 / (1 + math.e)),
    'plain': Start(),
    'norms-half': Start(norms=0.5),
    'layer-scale-half': Start(LAYER_SCALE, init_step=0.5),
    'se-half': Start(RUNGS['se'], init_step=0.5),
}
"""Rungs from scratch. Verdicts rest on the first three, which compute the same
at the start: StepNet starts at sigmoid(-1)."""


def last_norm(block: nn.Module) -> nn.BatchNorm2d:
    """The norm that gives a block's branch."""
    return [m for m in block.modules() if isinstance(m, nn.BatchNorm2d)][-1]


def put_in(
    model: nn.Module,
    rung: Rung,
    blocks: Sequence[str],
    example: object = None,
    init_step: float | None = 1.0,
) -> list[nn.Parameter]:
    """Put a rung into a network, and freeze what it does not train.

    Args:
        model (nn.Module): A network without steps, changed in place.
        rung (Rung): One of :data:`RUNGS`.
        blocks (Sequence): Names of the blocks in which it stands.
        example (object, optional): See :func:`mmstepnet.insert_steps`.
        init_step (float, optional): Likewise. Defaults to 1.0.

    Returns:
        list: The parameters that are trained.
    """
    parameters: list[nn.Parameter] = []
    if rung.attention is not None:
        mmstepnet.insert_steps(
            model,
            blocks=list(blocks),
            example=example,
            init_step=init_step,
            **rung.attention,
        )
        for gates in mmstepnet.step_parameters(model)[1:]:
            parameters += gates['params']
    if rung.trained:
        names = {
            p: name.rpartition('.')[2] for name, p in model.named_parameters()
        }
        parameters = [p for p in parameters if names[p] in rung.trained]
    if rung.norms:
        for name in blocks:
            parameters += last_norm(model.get_submodule(name)).parameters()
    if rung.head:
        parameters += head_of(model).parameters()
    model.requires_grad_(False)
    for p in parameters:
        p.requires_grad_()
    return parameters


def put_start(
    model: nn.Module, start: Start, blocks: Sequence[str], example: object
) -> list[nn.Parameter]:
    """Give a network the start of a rung from scratch.

    Gates draw their weights from PyTorch's own generator, the body is left as
    it is but for γ.

    Args:
        model (nn.Module): A network without steps, changed in place.
        start (Start): One of :data:`FROM_SCRATCH`.
        blocks (Sequence): Names of the blocks in which it stands.
        example (object): See :func:`mmstepnet.insert_steps`.

    Returns:
        list: The parameters that are trained: the body's, and the gates'.
    """
    body = list(model.parameters())
    gates = put_in(model, start.gates, blocks, example, start.init_step)
    for p in body:
        p.requires_grad_()
    for name in blocks:
        nn.init.constant_(
            last_norm(model.get_submodule(name)).weight, start.norms
        )
    return body + gates
