from .attention import (
    DotProductAttention,
    L2Attention,
    MetricAttention,
    PropagationAttention,
    PseudoMetricAttention,
)
from .functional import dot_product_propagation, metric_propagation
from .masks import neighbourhood

__all__ = [
    'DotProductAttention', 'L2Attention', 'MetricAttention',
    'PropagationAttention', 'PseudoMetricAttention',
    'dot_product_propagation', 'metric_propagation', 'neighbourhood'
]
