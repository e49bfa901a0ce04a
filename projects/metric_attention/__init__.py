"""The second paper's experiments, on the library's propagation.

Towards understanding how attention mechanism works in deep learning,
https://arxiv.org/abs/2412.18288. Nothing is imported here: ``theory`` and
``similarity`` need no OpenMMLab, and a config names in its
``custom_imports`` what it needs.
"""
