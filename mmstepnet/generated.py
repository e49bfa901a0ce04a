"""Classes that are made of other libraries' classes when they are needed."""

from functools import cache
from typing import Any

import torch.nn as nn


class Generated(nn.Module):
    """A module of a class that was made of its host's, in each process anew.

    It keeps all that it has and is still an instance of the host's class.
    """

    host: type
    """The host's class."""

    @classmethod
    def _named_over(cls, host: type) -> tuple[str, dict[str, Any]]:
        """Name of the class that is made of a host's, and what else it has."""
        return host.__name__, {}

    def __reduce_ex__(self, protocol: int) -> tuple:
        """Name the host's class."""
        _, _, *state = super().__reduce_ex__(max(protocol, 2))
        return _new_module, (type(self).__bases__[0], self.host), *state


@cache
def generated_class(kind: type[Generated], host: type) -> type[Generated]:
    """The class of a kind that is made of a host's."""
    metaclass: Any = type(host)
    name, members = kind._named_over(host)
    return metaclass(
        name,
        (kind, host),
        dict(host=host, __module__=kind.__module__) | members,
    )


def _new_module(kind: type[Generated], host: type) -> Generated:
    cls = generated_class(kind, host)
    return cls.__new__(cls)


def host_of(module: nn.Module | None) -> type:
    """The class that a module had before it was made another one's."""
    if isinstance(module, Generated):
        return module.host
    # FSDP2 makes FSDPBlock of a Block, with a class of its own before it.
    return next(
        cls
        for cls in type(module).__mro__
        if not cls.__name__.startswith('FSDP')
    )
