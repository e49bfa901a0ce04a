"""The tables in which pseudo-metrics and propagation modules stand."""

from mmstepnet.names import NameTable

PSEUDO_METRICS = NameTable('pseudo-metric')
"""Learnable similarities, see :class:`PseudoMetric`."""

PROPAGATIONS = NameTable('propagation')
"""Modules that inform tokens, points or nodes by each other, see
:class:`Propagation` and :class:`AttentionBlock`."""
