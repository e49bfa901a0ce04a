r"""Metric-attention where transformers looks for its attention.

Towards understanding how attention mechanism works in deep learning,
https://arxiv.org/abs/2412.18288, Section 4.1. :func:`register_attentions`
makes ``attn_implementation='l2'`` and ``'metric'`` known. Query and key are
the points that are compared:

.. math::
    S_{ij} = \mathrm{softmax}_j(-\|\tilde f(q_i) - \tilde f(k_j)\|^2
    / \varepsilon)

with :math:`\tilde f` the identity for ``'l2'``, and for ``'metric'`` the
paper's perceptron with a residual connection. Models map queries and keys by
matrices of their own, which the paper ties; with equal ones it is a metric.
Weights that were trained with a dot product lose their meaning.
"""

from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn as nn
from torch import Tensor

from mmstepnet.checks import check_installed
from mmstepnet.propagation import Metric, metric_propagation
from mmstepnet.steps.examples import guess_inputs, run_batch
from mmstepnet.steps.files import read_weights
from mmstepnet.steps.finding import in_mode

check_installed(__name__, 'transformers', install='transformers')

from transformers import (  # noqa: E402
    AttentionInterface,
    AttentionMaskInterface,
)
from transformers.masking_utils import sdpa_mask  # noqa: E402

REFUSED = ('output_attentions', 'position_bias', 's_aux', 'softcap')
"""What a model may ask for that needs the N x M scores themselves."""


def register_attentions(eps: float | None = 1.0) -> None:
    r"""Make ``attn_implementation='metric'`` and ``'l2'`` known.

    Masks, grouped heads and caches are those of ``'sdpa'``. Refused are
    dropout of the weights, biases of the scores, and attention weights as an
    output: the matrix of them is never made.

    Args:
        eps (float, optional): Time scale :math:`\varepsilon`. None takes that
            of each model, the inverse of its factor of the dot product,
            :math:`\sqrt d` mostly, which is ours. Defaults to 1.0, the
            paper's.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> from mmstepnet.integrations.transformers_attention import (
        ...     add_metrics, register_attentions)
        >>> register_attentions()
        >>> config = BertConfig(num_hidden_layers=1, vocab_size=9,
        ...                     attention_probs_dropout_prob=0.0,
        ...                     attn_implementation='metric')
        >>> add_metrics(BertModel(config))
        ['encoder.layer.0.attention.self']
    """
    for name in ('l2', 'metric'):
        AttentionInterface.register(name, partial(
            _attend, has_metric=name == 'metric', eps=eps))
        AttentionMaskInterface.register(name, sdpa_mask)


_heads: dict[nn.Module, int] | None = None
"""Modules that call an attention of ours, and the width of their heads."""


def add_metrics(model: Any, *, hidden_dims: int | None = None,
                example: dict[str, Tensor] | None = None) -> list[str]:
    """Give each attention of a model the metric that ``'metric'`` needs.

    One for all its heads, as ``metric`` of the module. Call it before an
    optimizer is built. The model is run once, and what calls an attention of
    ours in that pass gets a metric: several architectures take any
    ``attn_implementation`` and compute their own. Call it with ``'l2'``, too,
    for which nothing is added. ``save_pretrained`` writes the metrics, and
    what they are into the config, as ``metric_attention``;
    :func:`~mmstepnet.integrations.transformers.load_folder` reads both.

    Args:
        model (PreTrainedModel): A model of transformers, built with
            ``attn_implementation='metric'`` or ``'l2'``.
        hidden_dims (int, optional): See :class:`mmstepnet.propagation.Metric`.
            Defaults to None, the width of a head.
        example (dict, optional): What the model is called with. None is its
            ``dummy_inputs``, or an image of the size that its config names.

    Returns:
        list[str]: Names of the attentions.

    Raises:
        ValueError: No attention is called, or one asks for what needs the
            scores themselves.
    """
    global _heads
    _heads = {}
    try:
        with in_mode(model, False), torch.no_grad():
            run_batch(model, next(guess_inputs(model, True))
                      if example is None else example)
        heads = {name: (module, _heads[module]) for name, module
                 in model.named_modules() if module in _heads}
    finally:
        _heads = None
    kind = model.config._attn_implementation
    if not heads:
        raise ValueError(
            f'{type(model).__name__} with attn_implementation={kind!r} calls '
            "no attention of ours: give 'l2' or 'metric' where it is built, "
            'and take an architecture that calls what is registered')
    if kind == 'metric':
        for module, width in heads.values():
            module.metric = Metric(width, hidden_dims=hidden_dims).to(
                next(module.parameters()))
    model.config.metric_attention = dict(
        kind=kind, hidden_dims=hidden_dims, eps=_registered_eps(kind))
    return list(heads)


def load_metrics(model: Any, folder: str | Path) -> None:
    """Make a model attend as its config says, by the metrics of a folder.

    Raises:
        ValueError: The attention is known with another time scale, or the
            folder lacks metrics.
    """
    about = model.config.metric_attention
    kind, eps = about['kind'], about['eps']
    if kind not in AttentionInterface():
        register_attentions(eps)
    if _registered_eps(kind) != eps:
        raise ValueError(f'{folder} was saved with eps={eps}, and here '
                         f'register_attentions(eps={_registered_eps(kind)}) '
                         f'was called; a process has one')
    model.set_attn_implementation(kind)
    add_metrics(model, hidden_dims=about['hidden_dims'])
    saved = {key: t for path in Path(folder).glob('model*.safetensors')
             for key, t in read_weights(path).items()}
    # The folder may be of the model with a head, or without.
    prefix = f'{model.base_model_prefix}.'
    for key, t in model.state_dict().items():
        if '.metric.' in key:
            found = [saved[name] for name in (
                key, prefix + key, key.removeprefix(prefix)) if name in saved]
            if not found:
                raise ValueError(f'{folder} has no {key}')
            t.copy_(found[0])


def _registered_eps(kind: str) -> float | None:
    """Time scale that an attention was registered with."""
    return AttentionInterface()[kind].keywords['eps']


def _attend(module: Any, query: Tensor, key: Tensor, value: Tensor,
            attention_mask: Tensor | None, *, has_metric: bool,
            eps: float | None, dropout: float = 0.0,
            scaling: float | None = None, is_causal: bool | None = None,
            **kwargs: Any) -> tuple[Tensor, None]:
    """Attend as transformers calls it: (B, H, N, D) gives (B, N, H, E)."""
    asked = [name for name in REFUSED if isinstance(kwargs.get(name), Tensor)
             or kwargs.get(name)]
    if dropout or asked:
        raise ValueError(
            f'{type(module).__name__}: metric-attention never has its matrix '
            f'of weights, so it has no ' + (
                f'{asked[0]}; build and call the model without' if asked else
                f'dropout of {dropout}; set it to 0 in the config, such as '
                f'attention_probs_dropout_prob=0.0'))
    if _heads is not None:
        _heads[module] = query.shape[-1]
    elif has_metric:
        if not hasattr(module, 'metric'):
            raise ValueError(f'{type(module).__name__} has no metric; call '
                             f'add_metrics(model) when it is built, or '
                             f'load_folder(model, folder)')
        query, key = module.metric.embed(query), module.metric.embed(key)
    divisor: Any = eps
    if eps is None:
        divisor = 1 / (query.shape[-1]**-0.5 if scaling is None else scaling)
    n, groups = query.shape[2], query.shape[1] // key.shape[1]
    if is_causal is None:
        is_causal = getattr(module, 'is_causal', True)
    is_causal = bool(is_causal and attention_mask is None and n > 1)
    if is_causal:  # of a cache that is not full yet
        key, value = key[:, :, :n], value[:, :, :n]
    key, value = (t.repeat_interleave(groups, 1) for t in (key, value))
    alone = None
    if attention_mask is not None:
        if attention_mask.dtype.is_floating_point:
            raise ValueError(f'{type(module).__name__}: metric-attention '
                             f'takes masks in bool, got a bias of the scores')
        # Padding sees nothing, and gets 0.
        alone = ~attention_mask.any(-1, keepdim=True)
        attention_mask = attention_mask | alone
    out = metric_propagation(query, key, value, divisor, attention_mask,
                             is_causal=is_causal)
    if alone is not None:
        out = out.masked_fill(alone, 0)
    return out.transpose(1, 2).contiguous(), None
