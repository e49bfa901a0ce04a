"""What stands in the blocks of a network, as a table."""

from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
import torch.nn as nn
from torch import Tensor

from mmstepnet.steps import ResidualStep
from mmstepnet.steps.branch import BranchStep
from mmstepnet.steps.examples import run_batch
from mmstepnet.tracing import hooked, in_mode, uncompiled
from mmstepnet.tracing.wrappers import name_modules

from .gates import HARDLY_MOVED, LEAST_DEVIATION


def summary(model: nn.Module, batches: Iterable[Any] | None = None) -> None:
    """Print which blocks have an attention, its size, and what it chooses.

    Nothing of it stays in the model.

    Args:
        model (nn.Module): A model with steps.
        batches (Iterable, optional): As :func:`measure_stiffness` takes them.
            With them the table has two columns more: the mean of Δt over
            images and channels, and its deviation over images, the mean over
            channels, as :func:`measure_gates` has them. A line below says
            so where the gates have hardly moved. The model runs in
            evaluation mode. Defaults to None.

    Raises:
        ValueError: The model has no steps, or none ran.

    Example:
        >>> from torchvision.models import resnet18
        >>> import mmstepnet
        >>> model = resnet18()
        >>> names = mmstepnet.insert_steps(model, blocks=['layer3', 'layer4'])
        >>> mmstepnet.summary(model)
        block     attention  channels  parameters
        layer3.1  StepNet         256       1,536
        layer4.1  StepNet         512       3,072
        2 steps with 4,608 of the 11,694,120 parameters of ResNet
    """
    steps: dict[str, Any] = {}
    for module, name in name_modules(model).items():
        if isinstance(module, ResidualStep) and module.attention is not None:
            steps[name.removesuffix('.step')] = module
    if not steps:
        raise ValueError(
            f'{type(model).__name__} has no steps; call insert_steps first'
        )
    rows = [['block', 'attention', 'channels', 'parameters']]
    deviations: list[Tensor] = []
    inside = 0
    for name, step in steps.items():
        attention = step.attention
        size = sum(p.numel() for p in attention.parameters())
        inside += size
        channels = getattr(attention, 'channels', '')
        kind = type(attention).__name__
        rows.append([name, kind, f'{channels}', f'{size:,}'])
    if batches is not None:
        rows[0] += ['mean of Δt', 'over images']
        chosen = _choose(model, batches, steps)
        means = torch.stack([gates.mean() for gates in chosen.values()])
        deviations.append(means.std(correction=0))
        for row, name in zip(rows[1:], steps):
            gates = chosen.get(name)
            if gates is None:  # it did not run
                row += ['', '']
                continue
            over_images = gates.std(0, correction=0).mean()
            row += [f'{gates.mean():.4f}', f'{over_images:.4f}']
            deviations += [over_images, gates.mean(0).std(correction=0)]
    _print_table(rows)
    if deviations and max(deviations) < LEAST_DEVIATION:
        print(HARDLY_MOVED)
    parameters = sum(p.numel() for p in model.parameters())
    print(
        f'{len(steps)} steps with {inside:,} of the {parameters:,} parameters '
        f'of {type(model).__name__}'
    )


def _choose(
    model: nn.Module, batches: Iterable[Any], steps: dict[str, Any]
) -> dict[str, Tensor]:
    """Steps Δt that a model takes, (N, C) in float64, by their names.

    Of an attention that gives a map it is the mean over the map.
    """
    values: dict[str, list[Tensor]] = defaultdict(list)

    def see(
        name: str,
        step: Any,
        x: Tensor,
        f: Tensor,
        chosen: Tensor | None,
        out: Tensor,
    ) -> None:
        if chosen is None:  # Plain
            chosen = torch.ones(1, 1, 1)
        elif isinstance(step, BranchStep):
            place = step.place
            chosen = chosen.movedim((place.batch, place.channels), (0, 1))
        gates = chosen.double().reshape(*chosen.shape[:2], -1).mean(2)
        values[name].append(gates.cpu())

    handles: list = [uncompiled.enter()]
    for name, step in steps.items():
        handles.append(step.observe(partial(see, name)))
    with hooked(handles), in_mode(model, False), torch.no_grad():
        for batch in batches:
            run_batch(model, batch)
    if not values:
        raise ValueError(
            f'no step of {type(model).__name__} ran; are there any batches?'
        )
    return {name: torch.cat(parts) for name, parts in values.items()}


def _print_table(rows: list[list[str]]) -> None:
    """Print rows, the first two columns to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        cells = []
        for place, (cell, width) in enumerate(zip(row, widths)):
            cells.append(
                f'{cell:<{width}}' if place < 2 else f'{cell:>{width}}'
            )
        print('  '.join(cells).rstrip())
