"""Readings of NSI, and how they follow from the norms of a step.

A reading is our interpretation where the paper leaves a choice: here, what
Eq. 4 divides by.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

READINGS = ('adaptive', 'unit', 'returned')
"""The three readings of NSI that are recorded."""

DEFAULT_READING = 'adaptive'

READING_TEXTS = {
    'adaptive': "step Δt is the block's attention value: ‖f‖ / ‖x_t‖",
    'unit': 'step Δt = 1: ‖f ⊗ Δt‖ / ‖x_t‖',
    'returned': 'what the block returns, activation included: '
                '‖out − x_t‖ / ‖x_t‖',
}
"""What the readings of NSI mean."""

FIELDS = (*READINGS, 'x_norm', 'f_norm', 'step_mean')
"""Everything that is recorded of a sample at a block."""


@dataclass
class StepNorms:
    """Norms of one residual step, each (N,).

    Attributes:
        x (Tensor): ‖x_t‖.
        f (Tensor): ‖f(x_t)‖ = ‖(x_{t+1} - x_t) / Δt‖.
        change (Tensor): ‖f(x_t) ⊗ Δt‖ = ‖x_{t+1} - x_t‖.
        returned (Tensor): ‖out - x_t‖ with what the block returns.
        step (Tensor): Mean attention value.
    """

    x: Tensor
    f: Tensor
    change: Tensor
    returned: Tensor
    step: Tensor


def compute_fields(
        steps: Mapping[str, StepNorms]) -> tuple[Tensor, dict[int, str]]:
    """All fields of one forward pass.

    Args:
        steps (Mapping[str, StepNorms]): Norms by the names of the L steps.

    Returns:
        tuple: Fields in the order of :data:`FIELDS`, (N, 6, L), float32; and
        of those samples of which a norm is not finite, or an index would not
        be, why.

    Raises:
        RuntimeError: The steps saw different numbers of samples.
    """
    sizes = {name: len(norms.x) for name, norms in steps.items()}
    if len(set(sizes.values())) > 1:
        raise RuntimeError(
            'blocks saw different numbers of samples in one forward pass: ' +
            ', '.join(f'{name} {size}' for name, size in sizes.items()) +
            '; name those that see the images by blocks=')
    x, f, change, returned, step = (
        torch.stack([getattr(n, part) for n in steps.values()], 1).cpu()
        for part in ('x', 'f', 'change', 'returned', 'step'))
    changes = torch.stack([f, change, returned], 1)
    without: dict[int, str] = {}

    def refuse(bad: Tensor, what: str) -> None:
        for sample, block in bad.nonzero().tolist():
            without.setdefault(
                sample, f'at block {list(steps)[block]} has {what}')

    refuse(~(x + changes.sum(1) + step).isfinite(),
           'NaN or infinite features; a diverged model or an overflow (in '
           'half precision, above 65504) has no stiffness')
    refuse((x == 0) & (changes.sum(1) > 0),
           'a state of norm 0 that changes; its stiffness index is infinite')
    nsi = torch.where(changes == 0, changes, changes / x[:, None])
    fields = torch.cat([nsi, torch.stack([x, f, step], 1)], 1).float()
    refuse(~fields.isfinite().all(1), 'a stiffness index beyond float32; its '
           'state has almost norm 0')
    return fields, without
