"""Readings of NSI, and how they follow from the norms of a step.

A reading is our interpretation where the paper leaves a choice: here, what
Eq. 4 divides by.
"""

from collections.abc import Sequence

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


def compute_fields(names: Sequence[str],
                   norms: Tensor) -> tuple[Tensor, dict[int, str]]:
    """All fields of one forward pass.

    Args:
        names (Sequence[str]): Names of the L steps.
        norms (Tensor): ‖x_t‖, ‖f‖, ‖f ⊗ Δt‖, ‖out − x_t‖ and the mean
            attention value of each sample at each step, (5, N, L).

    Returns:
        tuple: Fields in the order of :data:`FIELDS`, (N, 6, L), float32; and,
        by their places, the samples that cannot be measured, each with the
        reason: a norm or an index of it is not finite.
    """
    x, f, change, returned, step = norms.cpu()
    changes = torch.stack([f, change, returned], 1)
    without: dict[int, str] = {}

    def refuse(bad: Tensor, reason: str) -> None:
        for sample, block in bad.nonzero().tolist():
            without.setdefault(sample, f'at block {names[block]} has {reason}')

    refuse(~norms.sum(0).isfinite(),
           'NaN or infinite features; a diverged model or an overflow (in '
           'half precision, above 65504) has no stiffness')
    refuse((x == 0) & (changes.sum(1) > 0),
           'a state of norm 0 that changes; its stiffness index is infinite')
    nsi = torch.where(changes == 0, changes, changes / x[:, None])
    fields = torch.cat([nsi, torch.stack([x, f, step], 1)], 1).float()
    refuse(~fields.isfinite().all(1), 'a stiffness index beyond float32; its '
           'state has almost norm 0')
    return fields, without
