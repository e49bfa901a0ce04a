"""Whether an attention is worth it on somebody's own pictures.

For whoever has a network and labelled pictures. A model and pictures go in;
rows in a file, one table and one sentence come out.
"""

from .compare import compare_rungs
from .comparison import Comparison

__all__ = ['Comparison', 'compare_rungs']
