from .attention import (
    DotProductAttention,
    L2Attention,
    MetricAttention,
    ProjectedSources,
    PropagationAttention,
    PseudoMetricAttention,
)
from .build import METRIC_ATTENTION, build_propagation
from .functional import dot_product_propagation, metric_propagation
from .limit_operator import attention_limit_operator
from .masks import neighbourhood

__all__ = [
    'METRIC_ATTENTION', 'DotProductAttention', 'L2Attention',
    'MetricAttention', 'ProjectedSources', 'PropagationAttention',
    'PseudoMetricAttention', 'attention_limit_operator', 'build_propagation',
    'dot_product_propagation', 'metric_propagation', 'neighbourhood'
]
