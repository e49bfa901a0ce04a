"""Modules of a model by their names, without those of wrappers."""

from collections.abc import Iterable

import torch.nn as nn

from mmstepnet.tracing.wrappers import name_modules, unwrap

from .residual import ResidualStep

SHARDED = {'DistributedDataParallel', 'FullyShardedDataParallel', 'FSDPModule'}
"""Classes of PyTorch that take parameters over; one need not import them."""


def modules_by_name(model: nn.Module) -> dict[str, nn.Module]:
    """Modules as the unwrapped model names them.

    Wrappers (``torch.compile``, checkpointing, FSDP) are not among them, but
    what is in them.
    """
    return {name: module for module, name in name_modules(model).items()}


def find_modules_to_save(
    modules: dict[str, nn.Module], names: Iterable[str]
) -> dict[str, nn.Module]:
    """Modules that the argument ``modules_to_save`` names."""
    checked = list(names)
    if isinstance(names, str) or not all(
        isinstance(name, str) and name for name in checked
    ):
        raise TypeError(
            f'modules_to_save must be a list of names, got {names!r}'
        )
    for name in checked:
        if name not in modules:
            raise ValueError(
                f'modules_to_save names {name!r}, and the model '
                f'has no such module'
            )
    return {name: modules[name] for name in checked}


def steps_of(block: nn.Module) -> list[ResidualStep]:
    """Steps among the children of a block, those in wrappers too."""
    return [
        m for m in map(unwrap, block.children()) if isinstance(m, ResidualStep)
    ]


def check_unsharded(names: dict[nn.Module, str]) -> None:
    """Refuse a model whose parameters DDP or FSDP has taken over.

    Args:
        names (dict[nn.Module, str]): All its modules, see
            :func:`~mmstepnet.tracing.wrappers.name_modules`.

    Raises:
        RuntimeError: It, or a module in it, is in DDP or FSDP.
    """
    for module, name in names.items():
        if not SHARDED.isdisjoint(c.__name__ for c in type(module).__mro__):
            raise RuntimeError(
                f'{name or "the model"} is in {type(module).__name__}, which '
                f'would not see new parameters; change steps before it is '
                f'wrapped'
            )
