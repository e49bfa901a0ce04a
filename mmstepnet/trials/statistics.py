"""What paired answers say of a difference between two rungs, in points."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

LEVEL = 0.05

DISAGREEMENT = 0.1
"""Share of the pictures on which two rungs are taken to disagree, before
anything is trained."""

SHOWN = 2.8
"""Standard errors of a difference that pictures can show: one question, asked
with a known standard error, would find it with 80 % (1.96 + 0.84)."""

POWER = 0.46
"""With which it is found here: a standard error of five folds is uncertain,
and there are two questions. By simulation, as the next one."""

SURE = 4.5
"""Standard errors of a difference that is found here with 80 %."""

UNSEEN = (3.0 / stats.norm.isf(LEVEL)) ** 2
"""What n pictures that show no disagreement leave open is up to 3 / n of all
pictures (the rule of three). This over n² is the variance with which the test
of a margin says so."""


class Difference(NamedTuple):
    """How far one rung is ahead of another, in points of accuracy."""

    mean: float
    error: float
    """Standard error of the mean."""
    freedom: int
    """Degrees of freedom of Student's t."""
    pictures: int
    """How many were tested."""

    def reach(self, level: float = LEVEL) -> float:
        """Half of Student's interval at ``1 - level``."""
        return float(stats.t.isf(level / 2, self.freedom)) * self.error

    def p_value(self) -> float:
        """Of the two-sided test of no difference."""
        t = abs(self.mean) / max(self.error, 1e-9)
        return float(2 * stats.t.sf(t, self.freedom))

    def is_within(self, margin: float) -> bool:
        """Two one-sided tests: whether it is smaller than a margin.

        Rungs that agree on all pictures have a standard error of 0, and yet
        may disagree on others. So the squared error gets a further part.
        """
        t = float(stats.t.isf(LEVEL, self.freedom))
        return (
            abs(self.mean) + t * math.hypot(self.error, self._unseen())
            < margin
        )

    def _unseen(self) -> float:
        """The standard error, in points, of what no picture has shown."""
        return 100 * UNSEEN**0.5 / self.pictures

    def deciding_factor(self, margin: float) -> float:
        """How many times as many pictures would decide.

        If the difference stays, and its standard error falls with the root of
        their number, then it is found, or it is within the margin.
        """
        size = abs(self.mean)
        found = (self.reach(LEVEL / 2) / size) ** 2 if size else math.inf
        # error² / factor + unseen² / factor² = goal²
        t = float(stats.t.isf(LEVEL, self.freedom))
        goal = max(margin - size, 1e-9) / t
        root = math.hypot(self.error**2, 2 * self._unseen() * goal)
        within = (self.error**2 + root) / (2 * goal**2)
        return min(found, within)


def compare_answers(
    ours: Sequence[np.ndarray], others: Sequence[np.ndarray]
) -> Difference:
    """Compare two rungs, each of which has answered each picture once.

    The squared standard error is the larger of two: the variance of the
    folds' means divided by their number (Student's t with one degree of
    freedom less than there are folds), and the variance of the pictures'
    differences divided by their number. It is not their sum, because a fold's
    mean holds its pictures' variance already. Folds share pictures that they
    are trained on; no formula sees that.

    Args:
        ours (Sequence[np.ndarray]): Right answers of a rung, booleans, for
            each fold those of the pictures that it is tested on.
        others (Sequence[np.ndarray]): Those of the rung that it is compared
            with, for the same pictures.
    """
    parts = [100.0 * (a.astype(float) - b) for a, b in zip(ours, others)]
    folds = [part.mean() for part in parts]
    pictures = np.concatenate(parts)
    samples: Any = max(pictures, folds, key=stats.sem)
    return Difference(
        pictures.mean(), stats.sem(samples), len(samples) - 1, len(pictures)
    )


def holm(p_values: Sequence[float]) -> list[bool]:
    """Which of several questions are answered (Holm, 1979)."""
    answered = [False] * len(p_values)
    for rank, k in enumerate(np.argsort(p_values)):
        if p_values[k] > LEVEL / (len(p_values) - rank):
            break
        answered[k] = True
    return answered


def shown_difference(pictures: int, errors: float = SHOWN) -> float:
    """The difference that so many pictures can show, in points.

    Args:
        pictures (int): Pictures that are tested.
        errors (float): How many standard errors it is. Defaults to
            :data:`SHOWN`.
    """
    return 100 * errors * (DISAGREEMENT / pictures) ** 0.5
