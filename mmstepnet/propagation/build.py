"""Building a propagation module from a config."""

from typing import Any

from mmstepnet.registry import PROPAGATIONS, find_registered

from .attention import PropagationAttention

METRIC_ATTENTION = dict(type='MetricAttention')


def build_propagation(cfg: dict, embed_dims: int,
                      **kwargs: Any) -> PropagationAttention:
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
    if not isinstance(cfg, dict) or 'type' not in cfg:
        raise TypeError("propagation must be a dict with 'type', such as "
                        f"dict(type='MetricAttention'), got {cfg!r}")
    own = dict(cfg)
    name = own.pop('type')
    kwargs['embed_dims'] = embed_dims
    if twice := sorted(own.keys() & kwargs.keys()):
        raise TypeError(f'{", ".join(twice)} of the propagation {name!r} is '
                        "set by the network; leave it out of the "
                        "propagation's config")
    module = find_registered(PROPAGATIONS, name, 'propagation')
    return module(**own, **kwargs)
