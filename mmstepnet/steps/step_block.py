"""A block of another library, turned into one that takes ResidualSteps."""

import sys
from collections.abc import Iterator, Sequence
from inspect import signature
from typing import Any

import torch.nn as nn
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..blocks import (
    KnownBlock,
    StepDescription,
    describe,
    find_part,
    qualified_name,
)
from .finding.wrappers import name_modules, unwrap
from .foreign_step import ForeignStep
from .generated import Generated, generated_class
from .residual import ResidualStep


class StepBlock(Generated):
    """What turns a host's block into one that takes ResidualSteps."""

    def take_steps(self) -> None:
        """Take the steps out, in place."""
        raise NotImplementedError


class DescribedBlock(StepBlock):
    """A block whose ``forward`` is put together as its description says."""

    known: KnownBlock
    state: str
    """What the first argument of its ``forward`` is called."""
    _post_activations: set[str]

    def __init_subclass__(cls, **kwargs) -> None:
        super().__init_subclass__(**kwargs)
        known = describe(cls.host)
        if known is None:
            raise RuntimeError(
                f'{qualified_name(cls.host)} has no description in this '
                f'process; call mmstepnet.register_block beside the class')
        cls.known = known
        cls.state = list(signature(cls.host.forward).parameters)[1]

    def forward(self, *args, **kwargs) -> Tensor:
        """Take the block's steps. Arguments are those of the host's."""
        if not args:
            if self.state not in kwargs:
                raise TypeError(
                    f'{self.host.__name__}.forward() misses its first '
                    f"argument, '{self.state}'; got {', '.join(kwargs)}")
            args = (kwargs.pop(self.state), )
        if getattr(self, 'with_cp', False) and args[0].requires_grad:
            return checkpoint(
                self._forward, *args, use_reentrant=False, **kwargs)
        return self._forward(*args, **kwargs)

    def _forward(self, *args, **kwargs) -> Tensor:
        for k, step in enumerate(self.known.steps):
            out = _take_step(self, step, k == 0, *args, **kwargs)
            args = (out, *args[1:])
        return out

    def named_modules(self, *args, **kwargs) -> Iterator:
        """List the modules; an activation that was exchanged is the step's."""
        self._settle()
        return super().named_modules(*args, **kwargs)

    def _save_to_state_dict(self, *args) -> None:
        self._settle()
        super()._save_to_state_dict(*args)

    def _load_from_state_dict(self, *args) -> None:
        self._settle()
        super()._load_from_state_dict(*args)

    def _settle(self) -> None:
        for description in self.known.steps:
            activation = find_part(self, description.activation)
            step: Any = self._modules.get(description.name)
            step = None if step is None else unwrap(step)
            if step is not None and activation is not None and (
                    description.name not in self._post_activations
                    and isinstance(activation, nn.Module)
                    and unwrap(activation) is not unwrap(step.activation)):
                _give_activation(self, description, step)

    def take_steps(self) -> None:
        """Take the steps out, in place."""
        for description in self.known.steps:
            delattr(self, description.name)
        del self.__dict__['_post_activations']
        self.__class__ = self.host


def _take_step(block: Any, description: StepDescription, first: bool,
               x: Tensor, *args, **kwargs) -> Tensor:
    step = getattr(block, description.name)
    inner: Any = unwrap(step)
    # Somebody may have exchanged what the step applies.
    _give_drop_path(block, description, inner)
    activation = find_part(block, description.activation)
    own = description.name in block._post_activations
    if not own and activation is not None and (
            activation is not inner.activation):
        own = _give_activation(block, description, inner)
    if first:
        branch = description.branch(block, x, *args, **kwargs)
    else:
        branch = description.branch(block, x)
    identity = x
    if description.projects(block):
        identity = find_part(block, description.identity)(x)
    to_maps, from_maps = VIEWS[description.layout]

    def post_activation(total: Tensor) -> Tensor:
        assert activation is not None
        return to_maps(activation(from_maps(total)))

    return from_maps(step(
        to_maps(identity), to_maps(branch), find_part(block, description.norm),
        post_activation if own else None))


VIEWS = {
    'NCHW': (lambda t: t, lambda t: t),
    'NHWC': (lambda t: t.permute(0, 3, 1, 2), lambda t: t.permute(0, 2, 3, 1)),
    'NLC': (lambda t: t.transpose(1, 2)[..., None],
            lambda t: t[..., 0].transpose(1, 2)),
}
"""Views of a state as maps, (N, C, H, W), and of maps as a state."""


def steps_of(block: nn.Module) -> list[ResidualStep]:
    """Steps among the children of a block, those in wrappers too."""
    return [m for m in map(unwrap, block.children())
            if isinstance(m, ResidualStep)]


def put_steps(block: Any,
              attentions: Sequence[nn.Module | None]) -> None:
    """Put a ResidualStep for each attention into a known block, in place.

    Args:
        block (nn.Module): The block. Where it has steps, they are kept and
            get the attentions.
        attentions (Sequence): One for each of its steps; None is Δt = 1.
    """
    if steps_of(block):
        for description, attention in zip(block.known.steps, attentions):
            step: Any = unwrap(getattr(block, description.name))
            step.attention = attention
        return
    check_forward(block)
    block.__class__ = generated_class(DescribedBlock, type(block))
    block._post_activations = set()
    for description, attention in zip(block.known.steps, attentions):
        step = ForeignStep(attention)
        _give_activation(block, description, step)
        _give_drop_path(block, description, step)
        block.add_module(description.name, step.train(block.training))


def check_unsharded(model: nn.Module) -> None:
    """Refuse a model that several processes hold together.

    Raises:
        RuntimeError: It, or a module in it, is in DDP or FSDP.
    """
    fsdp = sys.modules.get('torch.distributed.fsdp')
    kinds = nn.parallel.DistributedDataParallel, *(
        getattr(fsdp, name) for name in (
            'FullyShardedDataParallel', 'FSDPModule') if hasattr(fsdp, name))
    for module, name in name_modules(model).items():
        if isinstance(module, kinds):
            raise RuntimeError(
                f'{name or "the model"} ({type(unwrap(module)).__name__}) is '
                f'in {type(module).__name__}, which has taken its parameters '
                f'over and knows nothing of others; put steps in, take them '
                f'out and fold before it is wrapped')


def check_offloaded(model: nn.Module) -> None:
    """Refuse a model whose weights somebody brings when they are needed.

    Raises:
        RuntimeError: A module with a ``forward`` of its own has its
            parameters on the meta device, as accelerate's offload puts them.
    """
    for module, name in name_modules(model).items():
        if 'forward' in vars(module) and any(
                p.is_meta for p in module.parameters(recurse=False)):
            raise RuntimeError(
                f'{name or "the model"} ({type(module).__name__}) has its '
                f'parameters on the meta device and a forward of its own, '
                f'set on the object, which brings them (offload of accelerate '
                f'does so); nobody would bring those of steps. Put steps in '
                f'before')


def check_forward(block: nn.Module) -> None:
    """Refuse a block that will not call the ``forward`` of its class.

    Raises:
        RuntimeError: One was set on the object.
    """
    if 'forward' not in vars(block):
        return
    what = ('has a forward of its own, set on the object (hooks of accelerate '
            'do so)')
    if isinstance(block, StepBlock):
        raise RuntimeError(
            f'a {qualified_name(block.host)} with a step {what}, which would '
            f'go on to call the step; take off what set it and delete it '
            f'(del block.forward) before you take out steps')
    raise RuntimeError(
        f'a {qualified_name(type(block))} {what}, which would never take a '
        f'step; put steps in before what sets it, or leave the block out by '
        f'blocks=')


def _give_activation(block: Any, description: StepDescription,
                     step: ResidualStep) -> bool:
    """Give the block's activation to the step, or leave it behind the step.

    Returns:
        bool: Whether it is applied behind the step, under its own key.
    """
    activation = find_part(block, description.activation)
    post_activation = activation is not None and bool(
        description.layout != 'NCHW' or activation.state_dict())
    step.activation = (
        nn.Identity() if post_activation or activation is None else activation)
    if post_activation:
        block._post_activations.add(description.name)
    return post_activation


def _give_drop_path(block: nn.Module, description: StepDescription,
                    step: ResidualStep) -> None:
    """Give the block's stochastic depth to the step."""
    drop_path = find_part(block, description.drop_path)
    if drop_path is step.drop_path:
        return
    if drop_path is not None:
        step.drop_path = drop_path
    elif type(step.drop_path) is not nn.Identity:
        step.drop_path = nn.Identity()
