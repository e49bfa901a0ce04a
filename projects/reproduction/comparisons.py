"""Paired comparisons over seeds, and what a set of them says of a claim."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import levene, ttest_1samp

from .power import POWER, difference_power, equivalence_power, seeds_needed

LEVEL = 0.05
"""Level of tests, two-sided, and of intervals."""

EQUAL = 1e-9
"""Differences that vary by less are equal, but for rounding."""

HELD = 'held'
REFUTED = 'refuted'
UNDECIDED = 'undecided'
WAITING = 'no verdict before all planned seeds'

Value = Callable[[dict[str, Any]], float | None]


@dataclass(frozen=True)
class Comparison:
    """Differences that a claim says are positive, one a seed.

    Attributes:
        name (str): What is compared.
        differences (tuple[float, ...]): In the quantity's unit.
        planned (int): Seeds that were planned; a test after every seed would
            find something sooner or later. Defaults to 0.

    Raises:
        ValueError: A difference is not finite.
    """

    name: str
    differences: tuple[float, ...]
    planned: int = 0

    def __post_init__(self):
        if not np.isfinite(self.differences).all():
            raise ValueError(f'{self.name}: differences must be finite, got '
                             f'{self.differences}')

    @property
    def complete(self) -> bool:
        """Whether all planned seeds are there."""
        return self.seeds >= max(self.planned, 1)

    @property
    def seeds(self) -> int:
        """Those that both rows have."""
        return len(self.differences)

    @property
    def varies(self) -> bool:
        """Whether a test can be made.

        Metrics come in steps, and seeds that happen to differ by the same
        one are no certainty.
        """
        return (len(self.differences) > 1
                and np.ptp(self.differences) >= EQUAL)

    @property
    def mean(self) -> float:
        """Mean difference."""
        return float(np.mean(self.differences))

    @property
    def deviation(self) -> float:
        """Sample standard deviation of the differences."""
        return float(np.std(self.differences, ddof=1))

    @property
    def p(self) -> float:
        """Student's paired t-test against 0, two-sided; 1 without one."""
        if not self.varies:
            return 1.0
        return float(ttest_1samp(self.differences, 0).pvalue)

    def equivalence_p(self, margin: float) -> float:
        """Two one-sided t-tests for a mean within the margin; or 1."""
        if not self.varies:
            return 1.0
        return float(max(
            ttest_1samp(self.differences, -margin, alternative='greater')
            .pvalue,
            ttest_1samp(self.differences, margin, alternative='less').pvalue))

    def interval(self, level: float = LEVEL) -> tuple[float, float] | None:
        """Confidence interval of the mean; None where nothing varies."""
        if not self.varies:
            return None
        return ttest_1samp(self.differences, 0).confidence_interval(1 - level)

    def format(self, decimals: int = 2) -> str:
        """Write it as evidence."""
        n = len(self.differences)
        if not n:
            return f'{self.name}: no seed of both'
        text = f'{self.name}: {self.mean:+.{decimals}f}'
        found = self.interval()
        if found is not None:
            low, high = (f'{end:+.{decimals}f}' for end in found)
            text += f', {1 - LEVEL:.0%} interval {low} to {high}'
        elif n > 1:
            text += ', all equal'
        return text + f' ({n} seed{"s" if n > 1 else ""})'

    def needed(self, margin: float, level: float) -> str:
        """How many seeds a decision would take, as text."""
        if not self.varies:
            return f'{self.name}: the differences do not vary'
        found, measured, shown = (
            seeds_needed(lambda n, power=power, size=size: power(
                self.deviation, n, size, level))
            for power, size in (
                (difference_power, margin),
                (difference_power, max(abs(self.mean), margin)),
                (equivalence_power, margin)))
        text = (f'{self.name}: at the measured deviation of '
                f'{self.deviation:.2f}, {POWER:.0%} power takes {found} seeds '
                f'for a difference of {margin:g} and {shown} for equivalence')
        if abs(self.mean) > margin:
            text += f', {measured} for a difference like the measured one'
        return text


@dataclass(frozen=True)
class VarianceComparison:
    """Two rows, of which a claim says that the first varies more over seeds.

    Attributes:
        name (str): What is compared.
        ours (tuple[float, ...]): One value a seed, in the quantity's unit.
        others (tuple[float, ...]): Of the row that varies less.
        planned (int): Seeds of either that were planned.
    """

    name: str
    ours: tuple[float, ...]
    others: tuple[float, ...]
    planned: int

    @property
    def complete(self) -> bool:
        """Whether all planned seeds are there."""
        return self.seeds >= max(self.planned, 2)

    @property
    def seeds(self) -> int:
        """Those that both have."""
        return min(len(self.ours), len(self.others))

    @property
    def variances(self) -> tuple[float, float]:
        """Sample variances (over N - 1) of both."""
        return (float(np.var(self.ours, ddof=1)),
                float(np.var(self.others, ddof=1)))

    @property
    def mean(self) -> float:
        """Difference of the variances."""
        return self.variances[0] - self.variances[1]

    @property
    def p(self) -> float:
        """Brown and Forsythe's test (1974), two-sided; 1 without one."""
        if max(np.ptp(self.ours), np.ptp(self.others)) < EQUAL:
            return 1.0
        return float(levene(self.ours, self.others, center='median').pvalue)

    def format(self, decimals: int = 2) -> str:
        """Write it as evidence."""
        ours, others = (f'{v:.3g}' for v in self.variances)
        return (f'{self.name}: variances over {self.seeds} seeds {ours} and '
                f'{others}')


def pair(name: str, ours: Sequence[dict], others: Sequence[dict],
         value: Value, seeds: Collection[int] | None = None,
         shift: float = 0.0) -> Comparison:
    """Subtract results of the same seeds.

    Args:
        name (str): What is compared.
        ours (Sequence[dict]): Results that the claim says are larger.
        others (Sequence[dict]): Results to compare with.
        value (Callable): Takes the quantity from a result; where it gives
            None the seed is left out.
        seeds (Collection[int], optional): The planned seeds, only which
            count. Defaults to None, all that there are.
        shift (float): Added to each difference. Defaults to 0.
    """
    left, right = ({
        result['seed']: value(result)
        for result in results if value(result) is not None
    } for results in (ours, others))
    both = sorted(left.keys() & right.keys())
    return Comparison(
        name, tuple(left[s] - right[s] + shift for s in both
                    if seeds is None or s in seeds), len(seeds or ()))


def judge(comparisons: Sequence[Comparison | VarianceComparison],
          margin: float | None, level: float = LEVEL) -> str:
    """Judge a claim that all differences are positive.

    Held where the tests find that every one is, each at the full level:
    that all must be is itself the correction (intersection-union test;
    Berger, 1982). Refuted where they find that one is negative, or where one
    that they do not find to be positive is shown to be smaller than the
    margin, each corrected for the number of comparisons (Bonferroni).

    Args:
        comparisons (Sequence[Comparison]): Those of the claim.
        margin (float, optional): The smallest difference that matters. None
            makes no test of equivalence, and there is none of variances.
        level (float): Defaults to 0.05.

    Returns:
        str: The verdict; none before all comparisons are complete.
    """
    if not comparisons or not all(c.complete for c in comparisons):
        return WAITING
    each = level / len(comparisons)
    behind = [c for c in comparisons if not (c.mean > 0 and c.p < level)]
    if not behind:
        return HELD
    if any(c.mean < 0 and c.p < each for c in behind) or (
            margin is not None
            and any(c.equivalence_p(margin) < each for c in behind)):
        return REFUTED
    return UNDECIDED
