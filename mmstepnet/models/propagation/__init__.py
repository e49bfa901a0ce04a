from .attention import (
    DotProductAttention,
    L2Attention,
    MetricAttention,
    ProjectedSources,
    PropagationAttention,
    PseudoMetricAttention,
)
from .build import build_propagation
from .face_segmentor import FaceSegmentor, MeshDataPreprocessor
from .functional import dot_product_propagation, metric_propagation
from .ipn import InformationPropagationNetwork
from .limit_operator import attention_limit_operator
from .masks import neighbourhood
from .point_classifier import PointClassifier

__all__ = [
    'DotProductAttention', 'FaceSegmentor', 'InformationPropagationNetwork',
    'L2Attention', 'MeshDataPreprocessor', 'MetricAttention',
    'PointClassifier', 'ProjectedSources', 'PropagationAttention',
    'PseudoMetricAttention', 'attention_limit_operator', 'build_propagation',
    'dot_product_propagation', 'metric_propagation', 'neighbourhood'
]
