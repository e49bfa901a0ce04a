"""Paired differences between rungs, and the words that they are given."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

LEVEL = 0.05


class Difference(NamedTuple):
    """How far one rung is ahead of another, in points of accuracy."""

    mean: float
    error: float
    """Standard error of the mean."""
    freedom: float
    """Degrees of freedom of Student's t."""

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """Both ends of Student's interval at ``1 - level``."""
        half = stats.t.isf(level / 2, self.freedom) * self.error
        return self.mean - half, self.mean + half

    def p_value(self) -> float:
        """Of the two-sided test of no difference."""
        if self.error == 0:
            return float(self.mean == 0)
        t = abs(self.mean) / self.error
        return float(2 * stats.t.sf(t, self.freedom))

    def is_within(self, margin: float, level: float = LEVEL) -> bool:
        """Two one-sided tests: whether it is smaller than a margin."""
        low, high = self.interval(2 * level)
        return -margin < low and high < margin


def compare_over_seeds(differences: Sequence[float]) -> Difference:
    """Compare rungs that were trained once a seed each.

    Args:
        differences (Sequence): Points, one a seed.
    """
    n = len(differences)
    return Difference(
        float(np.mean(differences)),
        float(np.std(differences, ddof=1)) / n**0.5,
        n - 1,
    )


def compare_over_pictures(ours: np.ndarray, others: np.ndarray) -> Difference:
    """Compare rungs over seeds and pictures, both of which are samples.

    Each seed is trained once, each picture is answered by all seeds. The
    variance is the sum of that of the seeds' means and that of the pictures'
    means over the seeds. The degrees of freedom are Satterthwaite's.

    Args:
        ours (np.ndarray): Right answers, (seeds, pictures) of booleans.
        others (np.ndarray): Those of the rung it is compared with, for the
            same seeds and pictures.
    """
    points = 100.0 * (ours.astype(float) - others)
    parts = [
        (means.var(ddof=1) / len(means), len(means) - 1)
        for means in (points.mean(1), points.mean(0))
    ]
    variance = sum(part for part, _ in parts)
    freedom = (
        variance**2 / sum(part**2 / n for part, n in parts)
        if variance
        else 1.0
    )
    return Difference(
        float(points.mean()), float(variance**0.5), float(freedom)
    )


def holm(p_values: Sequence[float], level: float = LEVEL) -> list[bool]:
    """Which of several questions are answered (Holm, 1979)."""
    answered = [False] * len(p_values)
    order = np.argsort(p_values)
    for rank, k in enumerate(order):
        if p_values[k] > level / (len(p_values) - rank):
            break
        answered[k] = True
    return answered


def give_verdict(
    difference: Difference, is_answered: bool, margin: float
) -> str:
    """The plan's words for a difference.

    Args:
        difference (Difference): First rung minus second.
        is_answered (bool): Whether Holm's test finds that it is not 0.
        margin (float): Points that are worth something.
    """
    side = 'ahead' if difference.mean > 0 else 'behind'
    is_small = difference.is_within(margin)
    if is_answered and is_small:
        return f'{side}, by less than {margin} points'
    if is_answered:
        return side
    return f'worth less than {margin} points' if is_small else 'undecided'
