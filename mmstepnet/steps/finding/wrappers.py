"""Models and blocks inside wrappers, and names without those of wrappers."""

from collections.abc import Iterator

import torch
import torch.nn as nn
from torch import Tensor

WRAPPERS = ('_orig_mod', '_checkpoint_wrapped_module',
            '_fsdp_wrapped_module', 'module')
"""What wrappers call the module that is in them."""


def unwrap(model: nn.Module) -> nn.Module:
    """Model inside wrappers: parallel, averaged or compiled.

    Raises:
        TypeError: ``model`` is no module.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(
            f'model must be an nn.Module, got {type(model).__name__}; '
            f"eval() of the hosts' ResNets returns None")
    while (inner := _inside(model)) is not None:
        model = inner
    return model


def _inside(module: nn.Module) -> nn.Module | None:
    """What a wrapper wraps; None where the module is no wrapper."""
    children = dict(module.named_children())
    for name in WRAPPERS:
        inner = children.get(name)
        if inner is None and name == '_orig_mod':
            inner = getattr(module, name, None)
        if isinstance(inner, nn.Module) and len(children) < 2:
            return inner
    return None


def name_modules(model: nn.Module) -> dict[nn.Module, str]:
    """Names of all modules, without those that wrappers give.

    A wrapper and what is in it have one name.

    Raises:
        TypeError: ``torch.jit`` made a module in it.
    """
    names = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise TypeError(
                f'{name or "the model"} was made by torch.jit, whose modules '
                'run no hooks; record the model that it was made of')
        parent, _, part = name.rpartition('.')
        outer = model.get_submodule(parent)
        if name and _inside(outer) is module:
            names[module] = names[outer]
        else:
            names[module] = '.'.join(filter(None, (names.get(outer), part)))
    return names


def weights(module: nn.Module) -> Iterator[Tensor]:
    """Parameters and buffers of a module itself, and tensors in their place.

    FSDP and pruning keep weights as plain attributes.
    """
    for values in (module._parameters, module._buffers, vars(module)):
        yield from (v for v in values.values() if isinstance(v, Tensor))
