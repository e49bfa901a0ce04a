"""Building pseudo-metrics and propagation modules from configs."""

from typing import Any

import torch.nn as nn

from mmstepnet.checks import check_config
from mmstepnet.names import NameTable

from .pseudo_metric import PseudoMetric
from .tables import PROPAGATIONS, PSEUDO_METRICS

METRIC = dict(type='Metric')
METRIC_ATTENTION = dict(type='MetricAttention')
METRIC_PROPAGATION = dict(type='Propagation', pseudo_metric=METRIC)


def build_pseudo_metric(cfg: dict, embed_dims: int,
                        **kwargs: Any) -> PseudoMetric:
    """Build a pseudo-metric.

    Args:
        cfg (dict): ``type`` (a name registered in ``PSEUDO_METRICS``, or the
            class) and the arguments that are not the module's.
        embed_dims (int): Width of the tokens, points or nodes.
        **kwargs: Further arguments that the module sets, ``num_heads``.

    Raises:
        TypeError: ``cfg`` is no config, or gives what the module sets.
        KeyError: The name is not registered; the message lists what is.
    """
    return _build(PSEUDO_METRICS, 'pseudo_metric', METRIC, cfg,
                  dict(kwargs, embed_dims=embed_dims))


def build_propagation(cfg: dict, embed_dims: int,
                      **kwargs: Any) -> nn.Module:
    """Build a propagation module, whatever the default scope is.

    Args:
        cfg (dict): ``type`` (a name registered in ``PROPAGATIONS``, or the
            class) and the arguments that are not the network's.
        embed_dims (int): Width of the tokens, points or nodes.
        **kwargs: Further arguments that the network sets, such as
            ``num_heads``.

    Raises:
        TypeError: ``cfg`` is no config, or gives what the network sets.
        KeyError: The name is not registered; the message lists what is.
    """
    return _build(PROPAGATIONS, 'propagation', METRIC_ATTENTION, cfg,
                  dict(kwargs, embed_dims=embed_dims))


def _build(table: NameTable, what: str, example: dict, cfg: dict,
           given: dict) -> Any:
    check_config(what, cfg, str(example))
    own = dict(cfg)
    name = own.pop('type')
    cls = table.find(name)
    if twice := sorted(own.keys() & given.keys()):
        raise TypeError(f'{", ".join(twice)} of the {table.what} {name!r} is '
                        'set by the network; leave it out of the '
                        f"{table.what}'s config")
    if 'num_heads' in given and cls is table.get('Propagation'):
        raise TypeError(
            'the propagation alone has no heads, and this network needs an '
            'attention block: such as dict(type=\'AttentionBlock\', '
            f'pseudo_metric={cfg.get("pseudo_metric", METRIC)})')
    return cls(**own, **given)
