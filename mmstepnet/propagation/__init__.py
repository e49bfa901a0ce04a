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
from .functional import (
    dot_product_propagation,
    metric_propagation,
    pseudo_metric_propagation,
)
from .masks import neighbourhood
from .propagation import ProjectedSources, Propagation
from .pseudo_metric import PseudoMetric
from .pseudo_metrics import L2, DotProduct, GraphAttention, Metric

__all__ = [
    'L2',
    'AttentionBlock',
    'DotProduct',
    'DotProductAttention',
    'GraphAttention',
    'L2Attention',
    'Metric',
    'MetricAttention',
    'ProjectedSources',
    'Propagation',
    'PseudoMetric',
    'dot_product_propagation',
    'metric_propagation',
    'neighbourhood',
    'pseudo_metric_propagation',
]
