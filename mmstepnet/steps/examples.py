"""Running a model on an example, to see what it does."""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy

import torch.nn as nn
from torch import Tensor

CONTAINERS = dict, OrderedDict, list, set


@contextmanager
def on_meta(model: nn.Module) -> Iterator[None]:
    """Show the model on the meta device; nothing is copied or changed.

    What its modules keep of a pass meanwhile is forgotten.
    """
    before = [(vars(m), dict(vars(m))) for m in model.modules()]
    kept = [(value, copy(value)) for _, saved in before
            for value in saved.values() if type(value) in CONTAINERS]
    try:
        for attributes, saved in before:
            for key, value in saved.items():
                if isinstance(value, Tensor):
                    attributes[key] = value.to('meta')
                elif key in ('_parameters', '_buffers'):
                    attributes[key] = {k: t if t is None else t.detach().to(
                        'meta') for k, t in value.items()}
        yield
    finally:
        for attributes, saved in before:
            attributes.clear()
            attributes.update(saved)
        for value, saved in kept:  # such as a cache
            value.clear()
            (value.extend if isinstance(value, list) else value.update)(saved)


def call_of(example: object, samples: int | None = None,
            device: str | None = None) -> tuple[tuple, dict]:
    """Arguments of a call, with another number of samples or elsewhere."""
    if isinstance(example, dict):
        args, kwargs = (), dict(example)
    else:
        args = example if isinstance(example, (tuple, list)) else (example, )
        kwargs = {}
    size = next((len(t) for t in (*args, *kwargs.values())
                 if isinstance(t, Tensor) and t.dim()), None)

    def change(t: object) -> object:
        if not isinstance(t, Tensor):
            return t
        t = t if device is None else t.to(device)
        if samples is not None and t.dim() and len(t) == size:
            t = t[:1].expand(samples, *t.shape[1:]).contiguous()
        return t

    return tuple(map(change, args)), {k: change(v) for k, v in kwargs.items()}


def run_batch(model: nn.Module, batch: object) -> object:
    """Call a model with a tensor, its arguments, or these by name."""
    args, kwargs = call_of(batch)
    return model(*args, **kwargs)


@contextmanager
def in_mode(model: nn.Module, training: bool | None) -> Iterator[None]:
    """Training or evaluation mode; hosts do more than that in ``train``."""
    before = {m: m.training for m in model.modules()}
    for module in before if training is not None else ():
        module.training = training
    try:
        yield
    finally:
        for module, was in before.items():
            module.training = was
