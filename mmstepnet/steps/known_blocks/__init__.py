from . import convolutional, convolutional_openmmlab, detr, inverted_residual
from .description import (
    KNOWN_BLOCKS,
    KnownBlock,
    StepDescription,
    describe,
    find_part,
    fingerprint,
    qualified_name,
    register_block,
)

__all__ = [
    'KNOWN_BLOCKS', 'KnownBlock', 'StepDescription', 'convolutional',
    'convolutional_openmmlab', 'describe', 'detr', 'find_part', 'fingerprint',
    'inverted_residual', 'qualified_name', 'register_block'
]
