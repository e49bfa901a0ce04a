"""What the command's arguments may be. Nothing here imports PyTorch."""

KINDS = (
    'timm:NAME, torchvision:NAME, hf:NAME_OR_FOLDER, mm:CONFIG or '
    'FILE.py:FUNCTION'
)
"""Names of models."""

READINGS = 'adaptive', 'unit', 'returned'
"""Readings of NSI."""

RUNGS = 'head', 'norms', 'layer-scale', 'stepnet', 'se'
"""What ``worth`` compares."""
