"""Paired comparisons over seeds, and what a set of them says of a claim."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import ttest_1samp

LEVEL = 0.05
"""Level of every test, two-sided."""

LEAST_SEEDS = 3
"""Below it no test is made."""

EQUAL = 1e-9
"""Differences that vary by less are equal, but for rounding."""

HELD = 'held'
NOT_HELD = 'not held'
UNDECIDABLE = 'not decidable at this scale'
NO_RESULTS = 'no results yet'

Value = Callable[[dict[str, Any]], float | None]


@dataclass(frozen=True)
class Comparison:
    """Differences that a claim says are positive, one a seed.

    Attributes:
        name (str): What is compared.
        differences (tuple[float, ...]): In the quantity's unit.
        least (int): Seeds below which no test is made: those that were
            planned, for a test after every seed would find something sooner
            or later. Defaults to :data:`LEAST_SEEDS`.

    Raises:
        ValueError: A difference is not finite.
    """

    name: str
    differences: tuple[float, ...]
    least: int = LEAST_SEEDS

    def __post_init__(self):
        if not np.isfinite(self.differences).all():
            raise ValueError(f'{self.name}: differences must be finite, got '
                             f'{self.differences}')

    @property
    def p(self) -> float | None:
        """Student's paired t-test against 0; None where none is made.

        That is below :attr:`least` seeds, and where all differences are
        equal: metrics come in steps, and seeds that happen to take the same
        one are no certainty.
        """
        if len(self.differences) < self.least or np.ptp(
                self.differences) < EQUAL:
            return None
        return float(ttest_1samp(self.differences, 0).pvalue)

    @property
    def mean(self) -> float:
        """Mean difference."""
        return float(np.mean(self.differences))

    def format(self, decimals: int = 2) -> str:
        """Write it as evidence."""
        n = len(self.differences)
        if not n:
            return f'{self.name}: {NO_RESULTS}'
        text = f'{self.name}: {self.mean:+.{decimals}f}'
        if n > 1:
            text += f' ± {np.std(self.differences, ddof=1):.{decimals}f}'
        text += f' ({n} seed{"s" if n > 1 else ""}'
        return text + (')' if self.p is None else f', p = {self.p:.2g})')


def pair(name: str, ours: Sequence[dict], others: Sequence[dict],
         value: Value, least: int = LEAST_SEEDS) -> Comparison:
    """Subtract results of the same seeds.

    Args:
        name (str): What is compared.
        ours (Sequence[dict]): Results that the claim says are larger.
        others (Sequence[dict]): Results to compare with.
        value (Callable): Takes the quantity from a result; where it gives
            None the seed is left out.
        least (int): See :class:`Comparison`. Defaults to
            :data:`LEAST_SEEDS`.
    """
    left, right = ({
        result['seed']: value(result)
        for result in results if value(result) is not None
    } for results in (ours, others))
    seeds = sorted(left.keys() & right.keys())
    return Comparison(name, tuple(left[s] - right[s] for s in seeds), least)


def judge(comparisons: Sequence[Comparison]) -> str:
    """Judge a claim that all differences are positive.

    Held where every one is, at :data:`LEVEL` each: that all must be is
    itself the correction (intersection-union test; Berger, 1982). Not held
    where one is negative at that level after Holm's correction for all of
    them, those not tested yet included. No results where none has a seed;
    not decidable otherwise, which includes differences too small for so few
    seeds.
    """
    if not any(c.differences for c in comparisons):
        return NO_RESULTS
    p = {c.name: 1.0 if c.p is None else c.p for c in comparisons}
    corrected = holm(p)
    if any(c.mean < 0 and corrected[c.name] < LEVEL for c in comparisons
           if c.differences):
        return NOT_HELD
    if all(p[c.name] < LEVEL and c.mean > 0 for c in comparisons):
        return HELD
    return UNDECIDABLE


def holm(p: Mapping[str, float]) -> dict[str, float]:
    """Correct p-values for their number (Holm, 1979).

    Args:
        p (Mapping): By name.

    Returns:
        dict: Corrected, by name.
    """
    corrected, largest = {}, 0.0
    for rank, name in enumerate(sorted(p, key=p.get)):
        largest = max(largest, min(1.0, (len(p) - rank) * p[name]))
        corrected[name] = largest
    return corrected
