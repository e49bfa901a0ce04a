"""What other libraries call, one file a library and purpose.

Callbacks for whoever trains by Lightning or by transformers, TNS for
torchmetrics, and metric-attention in transformers' models and PyTorch
Geometric's graphs. A file imports its library when it is imported itself:
``from mmstepnet.integrations.lightning import StepsCallback``.
"""
