"""The common parts of the callbacks of all trainers."""

import copy
import logging
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import DataLoader, Sampler

from mmstepnet.steps.files import save_steps, step_keys
from mmstepnet.stiffness import measure_stiffness

LOGGER = logging.getLogger(__name__)


@dataclass(kw_only=True, eq=False)
class Options:
    """Arguments of a ``StepsCallback``, which says what they mean."""

    calibration_batches: int = 50
    measured_batches: int = 8
    save: bool = True
    forward: Callable[[nn.Module, Any], Any] | None = None


@contextmanager
def randomness_kept(loaders: Any) -> Iterator[None]:
    """Leave all random numbers as they were, so that a training stays itself.

    Loaders draw some where they are iterated, from the generators in them and
    in their samplers too, and in the main process their augmentations do.

    Args:
        loaders (Any): A loader, or some in a list, tuple or dict.
    """
    states = random.getstate(), np.random.get_state()
    generators = {g: g.get_state() for g in _generators(loaders, set())}
    with torch.random.fork_rng():
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])
            for generator, state in generators.items():
                generator.set_state(state)


def _generators(part: Any, seen: set[int]) -> Iterator[torch.Generator]:
    """Generators of loaders, their samplers and what these are made of."""
    if isinstance(part, torch.Generator):
        yield part
    elif id(part) not in seen:
        seen.add(id(part))
        if isinstance(part, (DataLoader, Sampler)):
            part = vars(part)
        if isinstance(part, dict):
            part = list(part.values())
        for inner in part if isinstance(part, (list, tuple)) else ():
            yield from _generators(inner, seen)


def save_beside(
    model: nn.Module, path: Path, state_dict: dict[str, Any] | None = None
) -> None:
    """Write the steps of a model, whose checkpoint has been written.

    A model without steps has nothing to write. The checkpoint has them, too,
    so a failure is logged and ends no training.

    Args:
        model (nn.Module): The model.
        path (Path): A file or a folder, see :func:`mmstepnet.save_steps`.
        state_dict (dict, optional): The model's weights in the checkpoint,
            such as averaged ones. None takes those in the model.
    """
    try:
        if not step_keys(model):
            return
        if state_dict is not None:
            model = copy.deepcopy(model)
            if lacking := step_keys(model).difference(state_dict):
                raise ValueError(f'the weights lack {min(lacking)}')
            model.load_state_dict(state_dict, strict=False)
        save_steps(model, path)
    except Exception as error:
        LOGGER.warning(
            'the steps were not written to %s (%s: %s)',
            path,
            type(error).__name__,
            error,
        )


def stiffness_of(
    model: nn.Module,
    batches: Iterable[Any],
    forward: Callable[[nn.Module, Any], Any] | None,
    device: torch.device,
) -> dict[str, float]:
    """TNS and mean NSI over the samples of all processes.

    Args:
        model (nn.Module): The model.
        batches (Iterable): Those of this process.
        forward (Callable, optional): See
            :func:`~mmstepnet.measure_stiffness`.
        device (torch.device): Where processes exchange numbers.

    Returns:
        dict[str, float]: ``tns`` and ``nsi``; no ``tns`` where it is 0 by
        definition, because one block of each stage is counted; empty where no
        process could measure, of which a warning tells the reason. A
        measurement ends no training.
    """
    # Samples with NSI, samples with TNS, and the sums of both. In float64,
    # which not all devices have.
    sums = torch.zeros(4, dtype=torch.float64)
    try:
        found = measure_stiffness(model, batches, forward=forward)
        has_tns = not found.single_block_stages
        sums = len(found) * sums.new_tensor(
            [1, has_tns, found.nsi().mean(), has_tns * found.tns()]
        )
    except Exception as error:
        LOGGER.warning(
            'the stiffness was not measured (%s: %s)',
            type(error).__name__,
            error,
        )
    if dist.is_available() and dist.is_initialized():
        sums = sums.to(device)
        dist.all_reduce(sums)
    count, with_tns, nsi, tns = sums.tolist()
    means = {}
    if with_tns:
        means['tns'] = tns / with_tns
    if count:
        means['nsi'] = nsi / count
    return means
