"""Classes that are made of other libraries' classes when they are needed."""

from collections.abc import Callable
from functools import cache

import torch.nn as nn


class Generated(nn.Module):
    """A module of a class that was made of its host's, in each process anew.

    It keeps all that it has and is still an instance of the host's class.
    """

    host: type
    """The host's class."""
    make: Callable[[type], type]
    """Makes our class of the host's."""

    def __reduce_ex__(self, protocol: int) -> tuple:
        """Name the host's class."""
        _, _, *state = super().__reduce_ex__(max(protocol, 2))
        return _new_module, (self.make, self.host), *state


def _new_module(make: Callable[[type], type], host: type) -> Generated:
    cls = make(host)
    return cls.__new__(cls)


class KeepsStatistics(Generated):
    """A BN that stays in eval mode, whoever calls ``train()``."""

    def train(self, mode: bool = True) -> nn.Module:
        """Stay in eval mode."""
        return super().train(False)

    def reset_running_stats(self) -> None:
        """Keep the statistics, which ``update_bn`` would not set anew."""

    def reset_parameters(self) -> None:
        """Bring all to its start, statistics included."""
        self.host.reset_running_stats(self)
        super().reset_parameters()


def class_of(norm: nn.Module) -> type:
    """Class of a norm, whether it stays in eval mode or not."""
    return norm.host if isinstance(norm, KeepsStatistics) else type(norm)


@cache
def keeping_class(host: type) -> type:
    """Class of a host's BN that stays in eval mode."""
    return type(host)(
        host.__name__, (KeepsStatistics, host),
        dict(host=host, make=staticmethod(keeping_class),
             __module__=__name__))
