"""Activation checkpointing of what has residual steps in it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.nn as nn
import torch.utils.checkpoint as cp

from mmstepnet.torch_version import is_compiling

_thread = threading.local()


def checkpoint(module: nn.Module, function: Callable, *args,
               **kwargs) -> Any:
    """Run a function of a module and run it again in backward.

    As :func:`torch.utils.checkpoint.checkpoint` without reentrance, with two
    differences. The second run takes the paths that the first one took,
    whatever switch, hook or observer came or went in between. And it leaves
    running statistics alone, so that those of a checkpointed block are
    updated once, as without checkpointing. Both hold for a checkpoint inside
    another, too, which runs a third time.

    Args:
        module (nn.Module): What owns the norms that ``function`` runs.
        function (Callable): What to run.
        *args: Its arguments.
        **kwargs: Its arguments by name.
    """
    if is_compiling():  # a compiler plans the second run itself
        return cp.checkpoint(function, *args, use_reentrant=False, **kwargs)
    outer = getattr(_thread, 'run', None)
    # One of the outer run's, which repeats it.
    decisions = replay_decision(list)
    again = outer is not None and outer.again
    return cp.checkpoint(
        function, *args, use_reentrant=False, context_fn=lambda: (
            _Run(module, decisions, again), _Run(module, decisions, True)),
        **kwargs)


def replay_decision(question: Callable) -> Any:
    """Answer a question; in a checkpoint's second run as in its first."""
    run = getattr(_thread, 'run', None)
    return question() if run is None else run.replay_decision(question)


@contextmanager
def repeated(decision: bool) -> Iterator[None]:
    """Answer as it was decided before, for a checkpoint of PyTorch's.

    That keeps no decisions. A run of ours keeps its own, which go first.
    """
    outer = getattr(_thread, 'run', None)
    if outer is None:
        _thread.run = _Run(None, [decision], True)
    try:
        yield
    finally:
        _thread.run = outer


@contextmanager
def statistics_kept(*owners: nn.Module | None) -> Iterator[None]:
    """Leave alone the running statistics of all norms in some modules.

    Copies take the updates: without buffers to update, a BN would save fewer
    tensors for the backward than in a checkpoint's first run.
    """
    norms = [(m, m._buffers) for owner in owners if owner is not None
             for m in owner.modules()
             if getattr(m, 'track_running_stats', False)]
    for norm, buffers in norms:
        norm._buffers = {name: t if t is None else t.clone()
                         for name, t in buffers.items()}
    try:
        yield
    finally:
        for norm, buffers in norms:
            norm._buffers = buffers


class _Run:
    """Context of a checkpointed function's first run, or of its second."""

    def __init__(self, module: nn.Module | None, decisions: list,
                 again: bool):
        self.module = module
        self.decisions = decisions
        self.again = again
        self.place = 0

    def __enter__(self) -> None:
        self.outer, _thread.run = getattr(_thread, 'run', None), self
        self.place = 0
        self.kept = statistics_kept(self.module if self.again else None)
        self.kept.__enter__()

    def __exit__(self, *exc) -> None:
        self.kept.__exit__(*exc)
        _thread.run = self.outer

    def replay_decision(self, question: Callable) -> Any:
        if not self.again:
            self.decisions.append(question())
        self.place += 1
        return self.decisions[self.place - 1]
