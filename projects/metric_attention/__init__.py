"""The second paper's experiments, on the library's propagation.

Towards understanding how attention mechanism works in deep learning,
https://arxiv.org/abs/2412.18288. A config names this module in its
``custom_imports``, and then knows the data sets, models and metrics.
"""

from . import datasets, metrics, models

__all__ = ['datasets', 'metrics', 'models']
