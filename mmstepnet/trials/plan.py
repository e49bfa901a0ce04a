"""What is trained for each rung, and how many epochs fit into the time."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .pictures import FOLDS, deal
from .rungs import QUESTIONS

RATES = 1e-3, 1e-2, 1e-1
"""One of these is chosen for each rung."""

MOST_EPOCHS = 10
FEW_EPOCHS = 2
"""Rungs on which no question rests are left out before there are fewer."""


class Training(NamedTuple):
    """Pictures that a rung is trained on, and others that it is tested on."""

    name: str
    trained: Tensor
    tested: Tensor
    rate: float = 0.0
    """The rate that is tried; 0 is the one that was chosen."""
    seed: int = 0


def plan_trainings(labels: Tensor, count: int) -> list[Training]:
    """All trainings of a rung: three rates are tried, then there are folds.

    Args:
        labels (Tensor): Numbers of the pictures' classes, (N,).
        count (int): How many of them may be trained on, the first ones. The
            others are tested on; if there are none, all are.
    """
    places = torch.arange(len(labels))
    tested = places[count % len(labels) :]
    parts = deal(labels[tested])
    folds = []
    for k in range(FOLDS):
        mine = tested[parts == k]
        others = places[:count][~torch.isin(places[:count], mine)]
        folds.append(Training(f'fold {k}', others, mine, seed=k))
    first = folds[0].trained
    parts = deal(labels[first])
    tries = []
    for rate in RATES:
        name = f'rate {rate:g}'
        tries.append(Training(name, first[parts > 0], first[parts == 0], rate))
    return tries + folds


def fit_epochs(
    costs: dict[str, dict[str, float]],
    trainings: list[Training],
    seconds: float,
) -> dict[str, Any]:
    """Fit epochs into a time.

    Args:
        costs (dict): Seconds, by rung, see
            :meth:`~.trial.Trial.measure`.
        trainings (list): Those of a rung.
        seconds (float): The time.

    Returns:
        dict: How many ``epochs``, of which rungs (``taken``), and the
        ``seconds`` that they need.

    Raises:
        ValueError: Not one epoch fits.
    """
    trained = sum(len(training.trained) for training in trainings)
    tested = sum(len(training.tested) for training in trainings)
    taken = list(costs)

    def needed(epochs: int) -> float:
        return sum(
            len(trainings) * costs[name]['building']
            + epochs * trained * costs[name]['training']
            + tested * costs[name]['inference']
            for name in taken
        )

    for name in reversed(costs):
        is_asked = any(name in question for question in QUESTIONS)
        if not is_asked and needed(FEW_EPOCHS) > seconds:
            taken.remove(name)
    for epochs in range(MOST_EPOCHS, 0, -1):
        if taken and needed(epochs) <= seconds:
            return dict(epochs=epochs, taken=taken, seconds=needed(epochs))
    taken = taken or list(costs)
    raise ValueError(
        f'one epoch of {", ".join(taken)} takes about {needed(1) / 60:.1f} '
        f'minutes; give it more minutes, or fewer pictures'
    )
