"""Scores of blocks that a network may do without, and the trial itself."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from mmstepnet.checks import check_choice
from mmstepnet.precision import full_precision
from mmstepnet.steps.examples import run_batch
from mmstepnet.steps.removal import prepare_removal, without_blocks
from mmstepnet.tracing import Selection, hooked, in_mode
from mmstepnet.tracing.wrappers import name_modules

from .readings import READINGS
from .recorder import TrajectoryRecorder

SCORES = (*READINGS, 'f_norm', 'influence')
"""Scores of :func:`block_scores`."""


def block_scores(
    model: nn.Module,
    batches: Iterable[Any],
    score: str = 'adaptive',
    *,
    blocks: Selection | None = None,
) -> dict[str, float]:
    """Score residual blocks; the one with the least would be removed first.

    None of them knows what the network is asked for. What a block is worth
    there, :func:`ablate_blocks` tries, and no score can rank single blocks
    better.

    - ``'adaptive'``, ``'unit'``, ``'returned'``: NSI in that reading, the
      mean over samples (Huang et al., https://arxiv.org/abs/2308.09939,
      Eq. 4).
    - ``'f_norm'``: ‖f‖, the mean over samples, as
      filters are pruned by their norms (Li et al.,
      https://arxiv.org/abs/1608.08710; of blocks it is our reading).
    - ``'influence'``: block influence, 1 minus the mean cosine of what the
      block is given and what it returns (Men et al., ShortGPT,
      https://arxiv.org/abs/2403.03853): token by token in states (N, L, C),
      and, a reading of ours, sample by sample in others.

    A block with several steps, as a Transformer's, has the sum of theirs.

    Args:
        model (nn.Module): The model; it runs in evaluation mode.
        batches (Iterable): As :func:`measure_stiffness` takes them; inside
            ``tqdm(...)`` they show a bar.
        score (str): One of the above. Defaults to ``'adaptive'``.
        blocks (optional): See :class:`TrajectoryRecorder`. Defaults to None.

    Returns:
        dict[str, float]: Score by the block's name, of all blocks that are
        recorded: not of the first of a stage.

    Raises:
        ValueError: ``score`` is unknown, no residual step was found, or
            features are NaN or infinite.

    Example:
        >>> import torch
        >>> from torchvision.models import resnet18
        >>> from mmstepnet import block_scores
        >>> list(block_scores(resnet18(), [torch.rand(2, 3, 64, 64)]))
        ['layer1.1', 'layer2.1', 'layer3.1', 'layer4.1']
    """
    check_choice('score', score, SCORES)
    batches = iter(batches)
    with in_mode(model, False), torch.no_grad():
        with TrajectoryRecorder(model, blocks) as recorder:
            for batch in batches:
                run_batch(model, batch)
                if score == 'influence':  # the blocks are known now
                    break
        of_step = [str(s.block) for s in recorder.steps if not s.left_out]
        if score == 'influence':
            return _influence(model, chain([batch], batches), of_step)
    values = getattr(recorder.trajectories(), score).mean(0)
    totals = dict.fromkeys(of_step, 0)
    for block, value in zip(of_step, values):
        totals[block] += value
    return {block: float(total) for block, total in totals.items()}


def _influence(
    model: nn.Module, batches: Iterable[Any], names: list[str]
) -> dict[str, float]:
    """1 minus the mean cosine of what each block is given and returns."""
    states: dict[str, Tensor] = {}
    cosines: dict[str, list[Tensor]] = defaultdict(list)

    # Of a wrapper and what is in it, which have one name, the latter.
    modules = {name: m for m, name in name_modules(model).items()}
    named = {modules[name]: name for name in names}

    def enter(block: nn.Module, args: tuple, kwargs: dict) -> None:
        # The block may overwrite it.
        states[named[block]] = next(iter((*args, *kwargs.values()))).clone()

    def leave(block: nn.Module, args: tuple, out: Any) -> None:
        name = named[block]
        x, y = map(
            full_precision,
            (states.pop(name), out if isinstance(out, Tensor) else out[0]),
        )
        if x.dim() != 3:
            x = x.flatten(1)
            y = y.flatten(1)
        cosine = F.cosine_similarity(x, y, -1).float().flatten().cpu()
        if not cosine.isfinite().all():
            raise ValueError(
                f'{name} is given or returns NaN or infinite '
                f'features, which have no block influence'
            )
        cosines[name].append(cosine)

    handles = []
    for block in named:
        handles += [
            block.register_forward_pre_hook(enter, with_kwargs=True),
            block.register_forward_hook(leave),
        ]
    with hooked(handles):
        for batch in batches:
            run_batch(model, batch)
    influence = {}
    for name in dict.fromkeys(names):
        influence[name] = 1 - float(torch.cat(cosines[name]).mean())
    return influence


def ablate_blocks(
    model: nn.Module,
    evaluate: Callable[[nn.Module], float],
    blocks: Selection | None = None,
    *,
    example: Tensor | tuple | dict | None = None,
    found: dict[str, float] | None = None,
    bar: bool = False,
) -> dict[str, float]:
    """Measure the loss of a model without each of its blocks.

    Args:
        model (nn.Module): The model. It has all its blocks again afterwards.
        evaluate (Callable): ``evaluate(model)`` gives a number such as the
            accuracy; evaluation mode is its own affair.
        blocks (optional): See :func:`remove_blocks`. None is all blocks that
            can be removed. Defaults to None.
        example (optional): See :func:`remove_blocks`. Defaults to None.
        found (dict, optional): What was found before and is not tried again;
            results are put into it as they come, so that what was
            interrupted goes on. Defaults to none.
        bar (bool): Whether a bar shows how far it is. Defaults to False.

    Returns:
        dict[str, float]: evaluate(whole model) - evaluate(without the block)
        by the block's name.

    Raises:
        ValueError: One of ``blocks`` may not go, see :func:`remove_blocks`,
            or ``evaluate`` gives NaN or infinity.

    Example:
        >>> import torch
        >>> from torchvision.models import resnet18
        >>> from mmstepnet import ablate_blocks
        >>> model = resnet18().eval()
        >>> image = torch.rand(1, 3, 64, 64)
        >>> lost = ablate_blocks(model, lambda model: float(model(image).max()))
        >>> list(lost)
        ['layer1.0', 'layer1.1', 'layer2.1', 'layer3.1', 'layer4.1']
    """  # noqa: E501

    def value(which: str) -> float:
        found = evaluate(model)
        if not math.isfinite(found):
            raise ValueError(
                f'evaluate gives {found} for the model {which}; '
                f'expected a finite number'
            )
        return found

    removed = prepare_removal(model, blocks, example)
    found = {} if found is None else found
    todo = [name for name in removed if name not in found]
    whole = value('as a whole') if todo else 0.0
    for name in tqdm(todo, 'without each block', disable=not bar):
        with without_blocks(model, {name: removed[name]}):
            found[name] = whole - value(f'without {name}')
    return found
