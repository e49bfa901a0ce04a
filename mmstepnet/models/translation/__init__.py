from .data_preprocessor import TranslationDataPreprocessor
from .search import beam_search
from .transformer import DecoderLayer, EncoderLayer, sinusoidal_positions
from .translator import TranslationTransformer

__all__ = [
    'DecoderLayer', 'EncoderLayer', 'TranslationDataPreprocessor',
    'TranslationTransformer', 'beam_search', 'sinusoidal_positions'
]
