"""A block of another library, turned into one that takes ResidualSteps."""

from functools import cache

import torch.nn as nn
import torch.utils.checkpoint as cp
from torch import Tensor

from .known_blocks import (
    KnownBlock,
    StepDescription,
    describe,
    find_part,
    qualified_name,
)


class StepBlock(nn.Module):
    """What turns a host's block into one that takes ResidualSteps.

    The block keeps all that it has and is still an instance of the host's
    class; its ``forward`` is put together from its own submodules, as its
    description says.
    """

    host: type
    """Class of the block without steps."""
    known: KnownBlock

    def forward(self, *args, **kwargs) -> Tensor:
        """Take the block's steps. Arguments are those of the host's."""
        steps = [getattr(self, step.name) for step in self.known.steps]
        observed = [step.observed for step in steps]
        state = args[0] if args else next(iter(kwargs.values()))
        if getattr(self, 'with_cp', False) and state.requires_grad:
            # Told, because an observer may come or go before backward.
            return cp.checkpoint(
                self._forward, observed, *args, use_reentrant=False, **kwargs)
        return self._forward(observed, *args, **kwargs)

    def _forward(self, observed: list[bool], *args, **kwargs) -> Tensor:
        for k, step in enumerate(self.known.steps):
            out = _take_step(self, step, observed[k], k == 0, *args, **kwargs)
            args = (out, *args[1:])
        return out

    def __reduce_ex__(self, protocol: int) -> tuple:
        """Name the host's class: ours is made anew in each process."""
        _, _, *state = super().__reduce_ex__(max(protocol, 2))
        return _new_block, (self.host, ), *state


def _new_block(host: type) -> StepBlock:
    cls = step_class(host)
    return cls.__new__(cls)


@cache
def step_class(host: type) -> type:
    """Class of a host's block that takes steps."""
    known = describe(host)
    if known is None:
        raise RuntimeError(
            f'{qualified_name(host)} has no description in this process; '
            f'call mmstepnet.steps.register_block beside the class')
    return type(host)('Step' + host.__name__, (StepBlock, host),
                      dict(host=host, known=known, __module__=__name__))


def _take_step(block: nn.Module, description: StepDescription, observed: bool,
               first: bool, x: Tensor, *args, **kwargs) -> Tensor:
    if first:
        branch = description.branch(block, x, *args, **kwargs)
    else:
        branch = description.branch(block, x)
    identity = x
    if description.projects(block):
        identity = find_part(block, description.identity)(x)
    norm = find_part(block, description.norm)
    step = getattr(block, description.name)
    if description.layout == 'NCHW':
        out = step(identity, branch, norm, observed=observed)
    elif description.layout == 'NHWC':
        out = step(
            identity.permute(0, 3, 1, 2), branch.permute(0, 3, 1, 2), norm,
            observed=observed).permute(0, 2, 3, 1)
    else:
        shape = (x.shape[1], 1)
        if description.map_shape is not None:
            shape = tuple(description.map_shape(*args, **kwargs))
        out = step(
            identity.transpose(1, 2).unflatten(2, shape),
            branch.transpose(1, 2).unflatten(2, shape), norm,
            observed=observed).flatten(2).transpose(1, 2)
    activation = find_part(block, description.activation)
    if activation is not None and activation is not step.activation:
        out = activation(out)
    return out
