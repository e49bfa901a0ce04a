"""Models and blocks inside wrappers, and names without those of wrappers."""

import torch
import torch.nn as nn

WRAPPERS = (
    '_orig_mod',
    '_checkpoint_wrapped_module',
    '_fsdp_wrapped_module',
    'module',
)
"""Names under which wrappers hold their module."""


def check_module(model: object) -> None:
    """Refuse what is no module, such as the name of a model.

    Raises:
        TypeError: ``model`` is no module.
    """
    if isinstance(model, nn.Module):
        return
    given = type(model).__name__
    if isinstance(model, str):
        given = f'the text {model!r}; build the model first'
    elif model is None:
        given = "None; eval() of the hosts' ResNets returns None"
    raise TypeError(f'a module is needed, a torch.nn.Module, got {given}')


def unwrap(model: nn.Module) -> nn.Module:
    """Model inside wrappers: parallel, averaged or compiled.

    Raises:
        TypeError: ``model`` is no module.
    """
    check_module(model)
    while (inner := _inside(model)) is not None:
        model = inner
    return model


def _inside(module: nn.Module) -> nn.Module | None:
    """The module inside a wrapper; None where the module is no wrapper."""
    children = list(module.named_children())
    alone = len(children) == 1 and children[0][0] in WRAPPERS
    return children[0][1] if alone else None


def name_modules(model: nn.Module) -> dict[nn.Module, str]:
    """Names of all modules, without those that wrappers give.

    A wrapper and what is in it have one name.

    Raises:
        TypeError: It is no module, or ``torch.jit`` made a module in it.
    """
    check_module(model)
    names = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise TypeError(
                f'{name or "the model"} was made by torch.jit, whose modules '
                'run no hooks; record the model that it was made of'
            )
        parent, _, part = name.rpartition('.')
        outer = model.get_submodule(parent)
        if name and _inside(outer) is module:
            names[module] = names[outer]
        else:
            names[module] = '.'.join(filter(None, (names.get(outer), part)))
    return names
