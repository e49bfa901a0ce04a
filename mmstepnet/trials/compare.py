"""The comparison: the one function of this room."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from tqdm import tqdm

from mmstepnet.checks import check_choice
from mmstepnet.version import __version__

from .comparison import Comparison
from .keep import keep_rung
from .pictures import FOLDS, check, decode, digest
from .plan import RATES, Training, fit_epochs, plan_trainings
from .rows import PLAN, Rows
from .rungs import QUESTIONS, RUNGS, Rung
from .statistics import POWER, SURE, shown_difference
from .trial import Recipe, Trial

WORST = 15.0
"""Points. Pictures that show only larger differences are too few."""

WORST_LOSS = 1e9
"""Of a rate that is so large that scores are no numbers."""


def compare_rungs(
    model: nn.Module,
    data: Any,
    rungs: Sequence[Rung] = RUNGS,
    *,
    val: Any = None,
    names: Sequence[Any] | None = None,
    minutes: float = 20.0,
    margin: float | None = None,
    batch_size: int = 32,
    out: str | Path = 'worth',
    keep: str | None = None,
    force: bool = False,
) -> Comparison:
    """Say whether an attention in a network is worth it on some pictures.

    The network is frozen, in evaluation mode. Each rung trains the head and
    what it puts into the residual blocks, from the same start, in the same
    order of pictures. Each picture is tested once, by the fold that was not
    trained on it. Each row is written as it comes: called again, it goes on.

    Args:
        model (nn.Module): A classifier whose head is a linear layer, on its
            device. It is left as it is.
        data (Iterable): Pairs of a picture (C, H, W), as the model takes it,
            and the number of its class, such as an ``ImageFolder`` with a
            transform.
        rungs (Sequence): What is compared: ``'head'``, ``'norms'``,
            ``'layer-scale'``, ``'stepnet'``, ``'se'``, further attentions or
            their names, and functions that change a model in place and
            return the parameters that are trained beside the head. Defaults
            to the five.
        val (Iterable, optional): Pictures to test on, of the same classes.
            Then each of the five trainings has all of ``data`` and a seed of
            its own, and is tested on a fifth of these. Defaults to None.
        names (Sequence, optional): What messages call the pictures, and
            behind them those of ``val``. Defaults to None, their numbers.
        minutes (float): How long it may take. Defaults to 20.
        margin (float, optional): Points of accuracy that are worth
            something. Defaults to None, what so many pictures can show.
        batch_size (int): Pictures at once, two at least. Defaults to 32.
        out (str | Path): Folder of the rows. Defaults to ``'worth'``.
        keep (str, optional): A rung that is trained on all of ``data`` and
            written into ``out``. Defaults to None.
        force (bool): Whether pictures will do that show only differences
            above 15 points. Defaults to False.

    Returns:
        Comparison: What came out. ``print`` shows a table and a sentence.

    Raises:
        KeyError: There is no such attention.
        ValueError: The pictures do not suffice, the network has no head or no
            blocks, is in half precision or gives NaN, an epoch takes too
            long, or the rows in ``out`` are of another trial.

    Example:
        >>> import torch
        >>> from torchvision.models import resnet18
        >>> import mmstepnet
        >>> data = [(torch.rand(3, 32, 32), k % 2) for k in range(60)]
        >>> result = mmstepnet.compare_rungs(
        ...     resnet18(), data, ['head', 'layer-scale'], minutes=0.4)
        >>> print(result)
    """
    started = time.monotonic()
    named = _by_name(rungs, keep)
    images, labels = decode(data)
    trainable = tested = len(labels)
    if val is not None:
        more, of_more = decode(val)
        tested = len(of_more)
        images = torch.cat([images, more])
        labels = torch.cat([labels, of_more])
    check(images, labels, trainable, names or range(len(labels)))
    shown = _say_what_is_shown(tested, named, force)
    rows = Rows(Path(out, 'rows.jsonl'))
    trial = Trial(model, images, labels, batch_size)
    settings = dict(
        version=__version__,
        # With the trial's head: the user's may be a new one in each call.
        network=digest(trial.model.state_dict().values()),
        pictures=digest([images, labels]),
        rungs=[*named],
        tested=tested,
        shown=shown,
        margin=shown if margin is None else margin,
        minutes=minutes,
        batch_size=batch_size,
    )
    _check_settings(rows, settings)
    trainings = plan_trainings(labels, trainable)
    if not rows:
        costs = {name: trial.measure(named[name]) for name in named}
        left = 60 * minutes - (time.monotonic() - started)
        plan = fit_epochs(costs, trainings, left)
        rows.append(PLAN, **settings, costs=costs, **plan)
    if keep is not None:
        check_choice('keep', keep, rows[PLAN]['taken'])
    _train(trial, named, trainings, rows)
    if keep is not None:
        recipe = Recipe(choose_rate(rows, keep), rows[PLAN]['epochs'], 0)
        places = torch.arange(trainable)
        _say(keep_rung(trial, named[keep], places, recipe, Path(out, keep)))
    return Comparison(rows)


def _by_name(rungs: Sequence[Rung], keep: str | None) -> dict[str, Rung]:
    """Rungs by their names; ``keep`` is one that can be kept."""
    named = {str(getattr(rung, '__name__', rung)): rung for rung in rungs}
    if len(named) < len(rungs):
        raise ValueError(f'two rungs have one name; got {", ".join(named)}')
    if keep is not None:
        check_choice('keep', keep, [*named])
        if callable(named[keep]) and not isinstance(named[keep], type):
            raise ValueError(
                f'keep={keep!r} is a function, and what it has put into a '
                f'model has no place in another one; train it yourself'
            )
    return named


def _say_what_is_shown(
    tested: int, named: dict[str, Rung], force: bool
) -> float:
    """Say, before anything is trained, what so many pictures can show.

    Returns:
        float: The difference that they can show, in points.
    """
    shown = shown_difference(tested)
    _say(
        f'{tested:,} pictures can show a difference of {shown:.1f} points: if '
        f'two rungs disagree on a tenth of them, one of that size is found in '
        f'{100 * POWER:.0f} of 100 such trials, one of '
        f'{shown_difference(tested, SURE):.1f} points in 80'
    )
    if shown > WORST and not force:
        raise ValueError(
            f'these {tested:,} pictures show only differences above '
            f'{shown:.0f} points: label more pictures, or force it'
        )
    if not any({*pair} <= {*named} for pair in QUESTIONS):
        _say(
            'No question is asked, so there will be numbers and no verdict; '
            "one is asked of 'layer-scale' beside 'head' or 'stepnet'"
        )
    return shown


def _check_settings(rows: Rows, settings: dict[str, Any]) -> None:
    """Rows that are there already are of this trial."""
    for key, value in settings.items():
        if rows and rows[PLAN][key] != value:
            raise ValueError(
                f'{rows.path} is of another trial: its {key} is '
                f'{rows[PLAN][key]}, and now it is {value}; choose another '
                f'folder for this one, or remove that file'
            )


def _train(
    trial: Trial, named: dict[str, Rung], trainings: list[Training], rows: Rows
) -> None:
    """Train and test what has no row yet."""
    plan = rows[PLAN]
    taken = plan['taken']
    jobs = [(training, name) for training in trainings for name in taken]
    to_do = [job for job in jobs if run_name(*job) not in rows]
    needed = plan['seconds'] * len(to_do) / len(jobs)
    device = trial.example.device.type.upper()
    _say(
        f'{len(taken)} rungs, {FOLDS} folds, {plan["epochs"]} epochs: about '
        f'{needed / 60:.1f} minutes on this {device}'
    )
    if len(taken) < len(named):
        left_out = ', '.join(name for name in named if name not in taken)
        _say(f'Left out for lack of time: {left_out}')
    done = len(jobs) - len(to_do)
    for training, name in tqdm(to_do, 'train', len(jobs), initial=done):
        rate = training.rate or choose_rate(rows, name)
        recipe = Recipe(rate, plan['epochs'], training.seed)
        model = trial.train(named[name], training.trained, recipe)
        scores = trial.answer(model, trial.images[training.tested]).double()
        wanted = trial.labels[training.tested]
        loss = F.cross_entropy(scores, wanted).nan_to_num(nan=WORST_LOSS)
        right = (scores.argmax(1) == wanted).int().tolist()
        rows.append(
            run_name(training, name),
            rate=rate,
            loss=loss.clamp(max=WORST_LOSS).item(),
            right=''.join(map(str, right)),
        )


def run_name(training: Training, rung: str) -> str:
    """What the row of a training is called."""
    return f'{rung}, {training.name}'


def choose_rate(rows: Rows, rung: str) -> float:
    """The rate of the lowest cross-entropy."""
    losses = {rate: rows[f'{rung}, rate {rate:g}']['loss'] for rate in RATES}
    return min(losses, key=losses.__getitem__)


def _say(text: str) -> None:
    tqdm.write(text, sys.stderr)
