"""Paired comparisons over seeds, and what a set of them says of a claim."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import levene, ttest_1samp

LEVEL = 0.05
"""Level of tests, two-sided, and of intervals."""

EQUAL = 1e-9
"""Values that vary by less are equal, but for rounding."""


class Comparison(NamedTuple):
    """What one pair of rows says of a claim.

    Attributes:
        name (str): What is compared.
        found (str): The numbers, as text.
        size (float): Positive if the rows are as claimed.
        p (float): Of the two-sided test of no difference.
        p_small (float): Of the two one-sided tests of a difference that is
            smaller than the margin; 1 where there is none.
    """

    name: str
    found: str
    size: float
    p: float
    p_small: float = 1.0


def interval(
    values: Sequence[float], level: float = LEVEL
) -> tuple[float, float]:
    """Student's confidence interval of a mean."""
    return ttest_1samp(values, 0).confidence_interval(1 - level)


def compare(
    name: str,
    differences: Sequence[float],
    decimals: int = 2,
    margin: float | None = None,
) -> Comparison:
    """Student's paired t-tests: of a difference, and of equivalence (TOST).

    Without variation there is no test: metrics come in steps, and seeds that
    happen to differ by the same one are no certainty.

    Args:
        name (str): What is compared.
        differences (Sequence[float]): That a claim says are positive, one a
            seed.
        decimals (int): Of the numbers in text. Defaults to 2.
        margin (float, optional): The smallest difference that matters. None
            makes no test of equivalence.
    """
    n, mean = len(differences), float(np.mean(differences))
    text = f'{mean:+.{decimals}f}'
    seeds = f' ({n} seed{"s" * (n > 1)})'
    if n < 2 or np.ptp(differences) < EQUAL:
        return Comparison(
            name, text + ', all equal' * (n > 1) + seeds, mean, 1.0
        )
    low, high = interval(differences)
    text += (
        f', {1 - LEVEL:.0%} interval {low:+.{decimals}f} to '
        f'{high:+.{decimals}f}{seeds}'
    )
    small = (
        1.0
        if margin is None
        else max(
            ttest_1samp(differences, side * margin, alternative=where).pvalue
            for side, where in ((-1, 'greater'), (1, 'less'))
        )
    )
    return Comparison(
        name,
        text,
        mean,
        float(ttest_1samp(differences, 0).pvalue),
        float(small),
    )


def compare_variances(
    name: str, ours: Sequence[float], others: Sequence[float]
) -> Comparison:
    """Brown and Forsythe's test (1974) that the first varies more.

    Args:
        name (str): What is compared.
        ours (Sequence[float]): One value a seed.
        others (Sequence[float]): Of the row that varies less.
    """
    first, second = np.var(ours, ddof=1), np.var(others, ddof=1)
    p = (
        1.0
        if max(np.ptp(ours), np.ptp(others)) < EQUAL
        else levene(ours, others, center='median').pvalue
    )
    return Comparison(
        name,
        f'variances over {len(ours)} seeds {first:.3g} and {second:.3g}',
        float(first - second),
        float(p),
    )


def judge(comparisons: Sequence[Comparison], level: float = LEVEL) -> str:
    """Judge a claim that all differences are positive.

    Held where the tests find that every one is, each at the full level:
    that all must be is itself the correction (intersection-union test;
    Berger, 1982). Refuted where they find that one is negative, or where one
    that they do not find to be positive is shown to be smaller than the
    margin, each corrected for the number of comparisons (Bonferroni).
    """
    each = level / len(comparisons)
    behind = [c for c in comparisons if not (c.size > 0 and c.p < level)]
    if not behind:
        return 'held'
    if any(c.size < 0 and c.p < each or c.p_small < each for c in behind):
        return 'refuted'
    return 'undecided'
