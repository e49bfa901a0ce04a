"""Modes of a model and hooks, for a while."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn as nn


class Uncompiled:
    """Keeps compiled code, which passes hooks by, uncompiled meanwhile.

    From the first who enters to the last who leaves, in any order.
    """

    users = 0
    stance: Any = None

    def enter(self) -> 'Uncompiled':
        """Begin, or join those who have begun; :meth:`remove` ends it."""
        self.users += 1
        # Nothing was compiled where dynamo was never imported (it is slow
        # to), and PyTorch before 2.6 has no stance.
        if (
            self.stance is None
            and 'torch._dynamo' in sys.modules
            and hasattr(torch.compiler, 'set_stance')
        ):
            self.stance = torch.compiler.set_stance('force_eager')
            self.stance.__enter__()
        return self

    def remove(self) -> None:
        """End; compiled code returns with the last one who leaves."""
        self.users -= 1
        if self.users == 0 and self.stance is not None:
            self.stance.__exit__(None, None, None)
            self.stance = None


uncompiled = Uncompiled()


@contextmanager
def hooked(handles: Iterable[Any]) -> Iterator[None]:
    """Remove hooks afterwards."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def in_mode(model: nn.Module, training: bool) -> Iterator[None]:
    """Training or evaluation mode, as the model's own ``train`` sets it.

    Hosts do more there than to set a flag: some prepare what they need for
    evaluation, others freeze parameters. All flags are as before afterwards.
    """
    before = {m: m.training for m in model.modules()}
    trained = {p: p.requires_grad for p in model.parameters()}
    try:
        if (not training) in before.values():
            with torch.no_grad():  # what is kept can be copied
                model.train(training)
        yield
    finally:
        for module, was in before.items():
            if module.training != was and (
                type(module).train is not nn.Module.train
            ):
                module.train(was)
        for module, was in before.items():
            module.training = was
        for parameter, was in trained.items():
            parameter.requires_grad_(was)


def only_looks(hook: Callable) -> Callable:
    """Mark a hook that need not be called for modules in a fused step.

    So who measures does not change the path of a step, which a checkpoint
    may take again when nobody measures.
    """
    vars(hook)['only_looks'] = True
    return hook
