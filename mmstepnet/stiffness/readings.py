"""Readings of NSI.

A reading is our interpretation where the paper leaves a choice: here, what
Eq. 4 divides by.
"""

READING_TEXTS = {
    'adaptive': "step Δt is the block's attention value: ‖f‖ / ‖x_t‖",
    'unit': 'step Δt = 1: ‖f ⊗ Δt‖ / ‖x_t‖',
    'returned': 'what the block returns, activation included: '
    '‖out − x_t‖ / ‖x_t‖',
}
"""The three readings of NSI that are recorded, and what they mean."""

READINGS = tuple(READING_TEXTS)

DEFAULT_READING = 'adaptive'

FIELDS = (*READINGS, 'x_norm', 'f_norm', 'step_mean')
"""Everything that is recorded of a sample at a block."""
