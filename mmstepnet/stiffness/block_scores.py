"""Which blocks a network could do without: scores, and the trial itself."""

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import chain, combinations
from typing import Any

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from mmstepnet.checks import check_choice
from mmstepnet.precision import full_precision
from mmstepnet.steps.examples import run_batch
from mmstepnet.steps.finding import Selection, hooked, in_mode
from mmstepnet.steps.finding.wrappers import name_modules
from mmstepnet.steps.removal import prepare_removal, without_blocks

from .readings import READINGS
from .recorder import TrajectoryRecorder
from .total import block_stiffness

LOGGER = logging.getLogger(__name__)

SCORES = (*READINGS, 'share', 'f_norm', 'influence', 'last', 'random')
"""Scores of :func:`block_scores`."""


def block_scores(model: nn.Module, batches: Iterable[Any],
                 score: str = 'adaptive', *,
                 blocks: Selection | None = None,
                 seed: int = 0) -> dict[str, float]:
    r"""Score residual blocks; the one with the least would be removed first.

    None of them knows what the network is asked for. What a block is worth
    there, :func:`ablate_blocks` tries, and no score can rank single blocks
    better.

    - ``'adaptive'``, ``'unit'``, ``'returned'``: NSI in that reading, the
      mean over samples (Huang et al., https://arxiv.org/abs/2308.09939,
      Eq. 4).
    - ``'share'``: the block's share of :math:`\iint \hat p`, see
      :func:`block_stiffness`; all 0 where each stage has one block.
    - ``'f_norm'``: :math:`\lVert f \rVert`, the mean over samples, as
      filters are pruned by their norms (Li et al.,
      https://arxiv.org/abs/1608.08710; of blocks it is our reading).
    - ``'influence'``: block influence, 1 minus the mean cosine of what the
      block is given and what it returns (Men et al., ShortGPT,
      https://arxiv.org/abs/2403.03853): token by token in states (N, L, C),
      and, a reading of ours, sample by sample in others.
    - ``'last'``: the last block has the least, a baseline without data.
    - ``'random'``: a random order.

    A block with several steps, as a Transformer's, has the sum of theirs.

    Args:
        model (nn.Module): The model; it runs in evaluation mode.
        batches (Iterable): As :func:`measure_stiffness` takes them.
        score (str): One of the above. Defaults to ``'adaptive'``.
        blocks (optional): See :class:`TrajectoryRecorder`. Defaults to None.
        seed (int): Of ``'random'``. Defaults to 0.

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
        >>> block_scores(resnet18(), [torch.rand(2, 3, 64, 64)], 'last')
        {'layer1.1': 3.0, 'layer2.1': 2.0, 'layer3.1': 1.0, 'layer4.1': 0.0}
    """
    check_choice('score', score, SCORES)
    batches = iter(batches)
    with in_mode(model, False), torch.no_grad():
        with TrajectoryRecorder(model, blocks) as recorder:
            for batch in batches:
                run_batch(model, batch)
                if score in ('influence', 'last', 'random'):
                    break
        found = recorder.trajectories()
        of_step = [str(s.block) for s in recorder.steps if not s.left_out]
        names = list(dict.fromkeys(of_step))
        if score == 'influence':
            return _influence(model, chain([batch], batches), names)
    if score in ('last', 'random'):
        order = np.arange(len(names))[::-1]
        if score == 'random':
            order = np.random.default_rng(seed).permutation(len(names))
        return dict(zip(names, map(float, order)))
    if score == 'share':
        values: Any = block_stiffness(found.nsi(), found.stages)
        values = values / (values.sum() or 1)
    else:
        values = getattr(found, score).mean(0)
    return {name: float(sum(value for value, block in zip(values, of_step)
                            if block == name)) for name in names}


def _influence(model: nn.Module, batches: Iterable[Any],
               names: list[str]) -> dict[str, float]:
    states: dict[str, Tensor] = {}
    cosines: dict[str, list[Tensor]] = defaultdict(list)
    named = {m: name for m, name in name_modules(model).items()
             if name in names}

    def enter(block: nn.Module, args: tuple, kwargs: dict) -> None:
        # The block may overwrite it.
        states[named[block]] = next(iter((*args, *kwargs.values()))).clone()

    def leave(block: nn.Module, args: tuple, out: Any) -> None:
        name = named[block]
        x, y = map(full_precision, (
            states.pop(name), out if isinstance(out, Tensor) else out[0]))
        if x.dim() != 3:
            x, y = x.flatten(1), y.flatten(1)
        cosine = F.cosine_similarity(x, y, -1).float().flatten().cpu()
        if not cosine.isfinite().all():
            raise ValueError(
                f'{name} is given or returns NaN or infinite features; a '
                f'diverged model or an overflow has no block influence')
        cosines[name].append(cosine)

    with hooked([handle for block in named for handle in (
            block.register_forward_pre_hook(enter, with_kwargs=True),
            block.register_forward_hook(leave))]):
        for batch in batches:
            run_batch(model, batch)
    return {name: 1 - float(torch.cat(cosines[name]).mean())
            for name in names}


def ablate_blocks(model: nn.Module,
                  evaluate: Callable[[nn.Module], float],
                  blocks: Selection | None = None, *,
                  pairs: bool = False,
                  example: Tensor | tuple | dict | None = None,
                  found: dict | None = None) -> dict:
    """What the model loses without each of its blocks.

    Args:
        model (nn.Module): The model. It has all its blocks again afterwards.
        evaluate (Callable): ``evaluate(model)`` gives a number such as the
            accuracy; evaluation mode is its own affair.
        blocks (optional): See :func:`remove_blocks`. None is all blocks that
            can be removed. Defaults to None.
        pairs (bool): Whether to try all pairs of blocks, too. Defaults to
            False.
        example (optional): See :func:`remove_blocks`. Defaults to None.
        found (dict, optional): What was found before and is not tried again;
            results are put into it as they come, so that what was
            interrupted goes on. Defaults to none.

    Returns:
        dict: evaluate(whole model) - evaluate(without the block) by the
        block's name; for pairs, by both names as a tuple.

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
    removed = prepare_removal(model, blocks, example)
    found = {} if found is None else found
    tried = [*removed, *(combinations(removed, 2) if pairs else ())]
    todo = [key for key in tried if key not in found]
    whole = _evaluate(evaluate, model, 'the whole model') if todo else 0.0
    for key in todo:
        names = (key, ) if isinstance(key, str) else key
        without = f'without {" and ".join(names)}'
        with without_blocks(model, {name: removed[name] for name in names}):
            found[key] = whole - _evaluate(
                evaluate, model, f'the model {without}')
        LOGGER.info('%s: %.4g less (%d of %d)', without, found[key],
                    tried.index(key) + 1, len(tried))
    return found


def _evaluate(evaluate: Callable, model: nn.Module, which: str) -> float:
    value = evaluate(model)
    if not math.isfinite(value):
        raise ValueError(f'evaluate must give a finite number, and gives '
                         f'{value} for {which}')
    return value
