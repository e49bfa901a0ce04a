"""The second paper's networks.

:mod:`.translation_metrics` is imported by name: it alone needs sacrebleu and
tokenizers.
"""

from .ipn import FaceSegmentor, InformationPropagationNetwork, PointClassifier
from .transformer import TranslationTransformer

__all__ = [
    'FaceSegmentor',
    'InformationPropagationNetwork',
    'PointClassifier',
    'TranslationTransformer',
]
