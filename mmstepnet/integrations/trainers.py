"""What the callbacks of all trainers do alike."""

import logging
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn

from mmstepnet.steps.files import steps_to_save
from mmstepnet.steps.modules import modules_by_name
from mmstepnet.stiffness import measure_stiffness

LOGGER = logging.getLogger(__name__)


@contextmanager
def randomness_kept() -> Iterator[None]:
    """Leave all random numbers as they were, so that a training stays itself.

    Loaders draw some where they are iterated, and in the main process their
    augmentations do.
    """
    states = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])


def check_has_steps(model: nn.Module) -> None:
    """Refuse, before any work, a model of which no steps can be saved."""
    try:
        steps_to_save(modules_by_name(model))
    except ValueError as error:
        raise ValueError(
            f'StepsCallback: {error}, or give save=False') from error


def stiffness_of(model: nn.Module, batches: Iterable[Any],
                 forward: Callable[[nn.Module, Any], Any] | None,
                 device: torch.device) -> dict[str, float]:
    """TNS and mean NSI over the samples of all processes.

    Args:
        model (nn.Module): The model.
        batches (Iterable): Those of this process.
        forward (Callable, optional): See
            :func:`~mmstepnet.measure_stiffness`.
        device (torch.device): Where processes exchange numbers.

    Returns:
        dict[str, float]: ``tns`` and ``nsi``; empty where no process could
        measure, of which a warning tells the reason. A measurement ends no
        training.
    """
    sums = torch.zeros(3, dtype=torch.float64)  # which not all devices have
    try:
        with randomness_kept():
            found = measure_stiffness(model, batches, forward=forward)
        sums += torch.tensor([
            len(found), len(found) * found.tns(),
            len(found) * float(found.nsi().mean())
        ], dtype=torch.float64)
    except Exception as error:
        LOGGER.warning('the stiffness was not measured (%s: %s)',
                       type(error).__name__, error)
    if dist.is_available() and dist.is_initialized():
        sums = sums.to(device)
        dist.all_reduce(sums)
    count, tns, nsi = sums.tolist()
    return dict(tns=tns / count, nsi=nsi / count) if count else {}
