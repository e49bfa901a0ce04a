"""What is known of residual blocks of other libraries, one file a library.

For whoever puts steps in: a block's class goes in, by its qualified name, so
that no library is imported; a description of its steps comes out. A block
needs one only for what running it cannot tell: a BN behind the last
convolution, which the fused step takes in, or a projected identity.
"""

from . import openmmlab, timm, torchvision, transformers
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
    'KNOWN_BLOCKS', 'KnownBlock', 'StepDescription', 'describe', 'find_part',
    'fingerprint', 'openmmlab', 'qualified_name', 'register_block', 'timm',
    'torchvision', 'transformers'
]
