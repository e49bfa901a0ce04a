from . import (
    convolutional,
    convolutional_openmmlab,
    inverted_residual,
    transformers,
)
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
    'convolutional_openmmlab', 'describe', 'find_part', 'fingerprint',
    'inverted_residual', 'qualified_name', 'register_block', 'transformers'
]
