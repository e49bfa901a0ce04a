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

import logging
from typing import Any

import torch
import torch.nn as nn
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from mmstepnet.propagation import Metric, metric_propagation
from mmstepnet.steps.examples import guess_inputs, run_batch
from mmstepnet.steps.notes import READ_BY
from mmstepnet.tracing import in_mode

from .transformers import names_in_files

LOGGER = logging.getLogger(__name__)

REFUSED = dict(
    dropout='set it to 0 in the config, as attention_probs_dropout_prob=0.0 '
    'in BERT',
    output_attentions='there is nothing to give, so leave it out',
    position_bias='take a model whose scores have no bias',
    s_aux='take a model without attention sinks',
    softcap='take a model whose scores have no cap',
)
"""Options that need the N x M scores themselves, and what to do."""


def register_attentions() -> None:
    """Make ``attn_implementation='metric'`` and ``'l2'`` known.

    Masks, grouped heads and caches are those of ``'sdpa'``. Refused are
    dropout of the weights, biases of the scores, and attention weights as an
    output: the matrix of them is never made.

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
        AttentionInterface.register(name, _attend)
        AttentionMaskInterface.register(name, sdpa_mask)


_heads: dict[nn.Module, int] | None = None
"""Modules that call an attention of ours, and the width of their heads."""


def add_metrics(
    model: Any,
    *,
    eps: float | None = 1.0,
    hidden_dims: int | None = None,
    example: dict[str, Tensor] | None = None,
) -> list[str]:
    r"""Give each attention of a model its time scale and its metric.

    One for all its heads, as ``metric`` of the module; ``'l2'`` needs none.
    Call it before an optimizer is built. The model is run once, and what calls
    an attention of ours in that pass gets a metric: several architectures take
    any ``attn_implementation`` and compute their own. ``save_pretrained``
    writes the metrics, and what they are into the config, as
    ``metric_attention``;
    :func:`~mmstepnet.integrations.transformers.load_folder` reads both. Where
    the config says already that there are metrics, a warning tells that these
    are new.

    Args:
        model (PreTrainedModel): A model of transformers, built with
            ``attn_implementation='metric'`` or ``'l2'``.
        eps (float, optional): Time scale :math:`\varepsilon`. None takes that
            of the model, the inverse of its factor of the dot product,
            :math:`\sqrt d` mostly, which is ours. Defaults to 1.0, the
            paper's.
        hidden_dims (int, optional): See :class:`mmstepnet.propagation.Metric`.
            Defaults to None, the width of a head.
        example (dict, optional): What the model is called with. None is its
            ``dummy_inputs``, or an image of the size that its config names.

    Returns:
        list[str]: Names of the attentions.

    Raises:
        ValueError: No attention is called, one asks for what needs the scores
            themselves, or the model has metrics already.
    """
    for name, module in model.named_modules():
        if name.rpartition('.')[2] == 'metric' and isinstance(module, Metric):
            raise ValueError(
                f'{type(model).__name__} has metrics, such as {name}, and new '
                f'ones would replace them; build the model anew for others'
            )
    about = getattr(model.config, 'metric_attention', {})
    names = _add_metrics(model, eps, hidden_dims, example)
    if about.get('kind') == 'metric':
        LOGGER.warning(
            'The config of %s says that it had metrics, and these are new: %s '
            'reads those that were trained.',
            type(model).__name__,
            READ_BY,
        )
    return names


def _add_metrics(
    model: Any,
    eps: float | None,
    hidden_dims: int | None,
    example: dict[str, Tensor] | None,
) -> list[str]:
    """Add new metrics, see :func:`add_metrics`."""
    global _heads
    _heads = {}
    try:
        with in_mode(model, False), torch.no_grad():
            run_batch(
                model,
                next(guess_inputs(model, True))
                if example is None
                else example,
            )
        heads = {
            name: (module, _heads[module])
            for name, module in model.named_modules()
            if module in _heads
        }
    finally:
        _heads = None
    kind = model.config._attn_implementation
    if not heads:
        raise ValueError(
            f'{type(model).__name__} with attn_implementation={kind!r} calls '
            "no attention of ours: give 'l2' or 'metric' where it is built, "
            'and take an architecture that calls what is registered'
        )
    for module, width in heads.values():
        module.metric_eps = eps
        if kind == 'metric':
            module.metric = Metric(width, hidden_dims=hidden_dims).to(
                next(module.parameters())
            )
    model.config.metric_attention = dict(
        kind=kind, hidden_dims=hidden_dims, eps=eps, read_by=READ_BY
    )
    return list(heads)


def load_metrics(
    model: Any, weights: dict[str, Tensor], about: dict[str, Any]
) -> list[str]:
    """Make a model attend as its folder says, by the metrics in there.

    Args:
        model (PreTrainedModel): The model, without metrics or with some.
        weights (dict[str, Tensor]): Those of the folder, by its own keys.
        about (dict): What :func:`add_metrics` has written into its config.

    Raises:
        ValueError: The folder lacks weights of a metric.
    """
    register_attentions()
    model.set_attn_implementation(about['kind'])
    names = _add_metrics(model, about['eps'], about['hidden_dims'], None)
    # The folder may be of the model with a head, or without.
    prefix = f'{model.base_model_prefix}.'
    saved = {key.removeprefix(prefix): t for key, t in weights.items()}
    own = {
        key: t for key, t in model.state_dict().items() if '.metric.' in key
    }
    for key, name in zip(own, names_in_files(model, own)):
        name = name.removeprefix(prefix)
        if name not in saved:
            raise ValueError(
                f'the folder lacks {key}, and its config says that it has '
                f'metrics; save the model with save_pretrained'
            )
        own[key].copy_(saved[name])
    return names


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **asked: Any,
) -> tuple[Tensor, None]:
    """Attend as transformers calls it: (B, H, N, D) gives (B, N, H, E)."""
    for name, remedy in REFUSED.items():
        if isinstance(asked.get(name), Tensor) or asked.get(name):
            raise ValueError(
                f'{type(module).__name__}: metric-attention never has its '
                f'matrix of weights, so it has no {name}; {remedy}'
            )
    if _heads is not None:
        _heads[module] = query.shape[-1]
    elif not hasattr(module, 'metric_eps'):
        raise ValueError(
            f'{type(module).__name__} has no metric and no time scale; of a '
            f'trained model call load_folder(model, folder), and of a new one '
            f'add_metrics(model)'
        )
    elif hasattr(module, 'metric'):
        query = module.metric.embed(query)
        key = module.metric.embed(key)
    divisor: Any = getattr(module, 'metric_eps', 1.0)
    if divisor is None:
        divisor = 1 / (query.shape[-1] ** -0.5 if scaling is None else scaling)
    n = query.shape[2]
    groups = query.shape[1] // key.shape[1]
    if is_causal is None:
        is_causal = getattr(module, 'is_causal', True)
    is_causal = bool(is_causal and attention_mask is None and n > 1)
    if is_causal:  # of a cache that is not full yet
        key = key[:, :, :n]
        value = value[:, :, :n]
    key, value = (t.repeat_interleave(groups, 1) for t in (key, value))
    alone = None
    if attention_mask is not None:
        if attention_mask.dtype.is_floating_point:
            raise ValueError(
                f'{type(module).__name__}: metric-attention '
                f'takes masks in bool, got a bias of the scores'
            )
        # Padding sees nothing, and gets 0.
        alone = ~attention_mask.any(-1, keepdim=True)
        attention_mask = attention_mask | alone
    out = metric_propagation(
        query, key, value, divisor, attention_mask, is_causal=is_causal
    )
    if alone is not None:
        out = out.masked_fill(alone, 0)
    return out.transpose(1, 2).contiguous(), None
