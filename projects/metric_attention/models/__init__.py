from .data_preprocessor import TranslationDataPreprocessor
from .face_segmentor import FaceSegmentor, MeshDataPreprocessor
from .ipn import InformationPropagationNetwork
from .point_classifier import PointClassifier
from .search import beam_search
from .transformer import DecoderLayer, EncoderLayer, sinusoidal_positions
from .translator import TranslationTransformer

__all__ = [
    'DecoderLayer', 'EncoderLayer', 'FaceSegmentor',
    'InformationPropagationNetwork', 'MeshDataPreprocessor',
    'PointClassifier', 'TranslationDataPreprocessor',
    'TranslationTransformer', 'beam_search', 'sinusoidal_positions'
]
