"""Attention as the second paper takes it apart, on PyTorch alone.

Towards understanding how attention mechanism works in deep learning,
https://arxiv.org/abs/2412.18288: pseudo-metrics, the propagation S . H by
their similarity, and the attention block, which is a propagation followed by
linear maps.
"""

from .attention import (
    AttentionBlock,
    DotProductAttention,
    L2Attention,
    MetricAttention,
)
from .build import (
    METRIC_ATTENTION,
    METRIC_PROPAGATION,
    build_propagation,
    build_pseudo_metric,
)
from .functional import (
    dot_product_propagation,
    metric_propagation,
    pseudo_metric_propagation,
)
from .limit_operator import attention_limit_operator
from .masks import neighbourhood
from .propagation import ProjectedSources, Propagation
from .pseudo_metric import PseudoMetric
from .pseudo_metrics import L2, DotProduct, GraphAttention, Metric
from .tables import PROPAGATIONS, PSEUDO_METRICS

__all__ = [
    'L2', 'METRIC_ATTENTION', 'METRIC_PROPAGATION', 'PROPAGATIONS',
    'PSEUDO_METRICS', 'AttentionBlock', 'DotProduct', 'DotProductAttention',
    'GraphAttention', 'L2Attention', 'Metric', 'MetricAttention',
    'ProjectedSources', 'Propagation', 'PseudoMetric',
    'attention_limit_operator', 'build_propagation', 'build_pseudo_metric',
    'dot_product_propagation', 'metric_propagation', 'neighbourhood',
    'pseudo_metric_propagation'
]
