"""Modes and hooks, for a while."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
import torch.nn as nn
from torch.utils.hooks import RemovableHandle


@contextmanager
def hooked(handles: Iterable[RemovableHandle]) -> Iterator[None]:
    """Remove hooks afterwards."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def in_mode(model: nn.Module, training: bool | None) -> Iterator[None]:
    """Training or evaluation mode, as the model's own ``train`` sets it.

    Hosts do more there than to set a flag: some prepare what they need for
    evaluation, others freeze parameters. All flags are as before afterwards.

    Args:
        model (nn.Module): The model.
        training (bool, optional): The mode; None leaves the model as it is.
    """
    before = {m: m.training for m in model.modules()}
    trained = {p: p.requires_grad for p in model.parameters()}
    try:
        if training is not None and (not training) in before.values():
            with torch.no_grad():  # what is kept can be copied
                model.train(training)
        yield
    finally:
        for module, was in before.items():
            if module.training != was and _does_more(module):
                module.train(was)
        for module, was in before.items():
            module.training = was
        for parameter, was in trained.items():
            if parameter.requires_grad != was:
                parameter.requires_grad_(was)


def _does_more(module: nn.Module) -> bool:
    return getattr(module.train, '__func__', None) is not nn.Module.train
