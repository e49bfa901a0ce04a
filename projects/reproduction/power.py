r"""Planned power of paired t-tests: for a difference, and for equivalence.

    python -m projects.reproduction.power --sd 0.4 0.65 0.84 \
        --seeds 10 20 25 30 --margin 0.5 --claims 2

Equivalence is shown by two one-sided t-tests (TOST; Schuirmann, 1987). All
deviations are those of the paired differences, in the metric's unit.
"""

import argparse
import math
from bisect import bisect_left
from collections.abc import Callable

from scipy.integrate import quad
from scipy.stats import chi, nct, norm, t

from .sheet import Sheet

POWER = 0.8
"""What a plan asks for."""


def difference_power(sd: float, seeds: int, difference: float,
                     level: float) -> float:
    """Power of the two-sided paired t-test for a difference.

    Args:
        sd (float): Standard deviation of the paired differences.
        seeds (int): Number of pairs.
        difference (float): The true mean difference.
        level (float): Level of the test.

    Returns:
        float: Probability to find a difference of the right sign; exact, by
        the noncentral t distribution.

    Raises:
        ValueError: An argument is out of range.
    """
    _check(sd, seeds, level)
    threshold = t.isf(level / 2, seeds - 1)
    return float(nct.sf(threshold, seeds - 1,
                        abs(difference) / sd * math.sqrt(seeds)))


def equivalence_power(sd: float, seeds: int, margin: float, level: float,
                      difference: float = 0.0) -> float:
    """Power of two one-sided paired t-tests for equivalence.

    Both must find the mean difference inside of ``(-margin, margin)``. Given
    the sample's deviation s, the mean must lie within
    ``margin - t * s / sqrt(seeds)``; its normal probability is integrated
    over the distribution of s.

    Args:
        sd (float): Standard deviation of the paired differences.
        seeds (int): Number of pairs.
        margin (float): Smallest difference that matters.
        level (float): Level of each of the two tests.
        difference (float): The true mean difference. Defaults to 0.

    Returns:
        float: Power, by quadrature.

    Raises:
        ValueError: An argument is out of range.
    """
    _check(sd, seeds, level)
    if not margin > 0:
        raise ValueError(f'margin must be above 0, got {margin}')
    df, error = seeds - 1, sd / math.sqrt(seeds)
    threshold = t.isf(level, df)
    ratio = chi(df, scale=1 / math.sqrt(df))  # of s to sd

    def inside(r: float) -> float:
        reach = margin - threshold * r * error
        return ratio.pdf(r) * (norm.cdf((reach - difference) / error)
                               - norm.cdf((-reach - difference) / error))
    # Beyond, no mean is near enough, or hardly a sample deviates as much.
    end = min(margin / (threshold * error), ratio.isf(1e-12))
    return float(quad(inside, 0, end, points=(min(1.0, end / 2), ),
                      limit=200)[0])


def seeds_needed(power: Callable[[int], float]) -> int:
    """The smallest number of seeds whose power is at least 0.8.

    Args:
        power (Callable): Takes a number of seeds.
    """
    high = 2
    while power(high) < POWER:
        high *= 2
    return bisect_left(range(high + 1), True, lo=2,
                       key=lambda seeds: power(seeds) >= POWER)


def _check(sd: float, seeds: int, level: float) -> None:
    if not sd > 0:
        raise ValueError(f'sd must be above 0, got {sd}')
    if seeds < 2:
        raise ValueError(f'a test needs at least 2 seeds, got {seeds}')
    if not 0 < level < 0.5:
        raise ValueError(f'level must lie between 0 and 0.5, got {level}')


def power_sheet(deviations: list[float], seeds: list[int], margin: float,
                level: float, claims: int) -> Sheet:
    """The power table of a plan.

    Args:
        deviations (list[float]): Of the paired differences.
        seeds (list[int]): Numbers of seeds.
        margin (float): Smallest difference that matters.
        level (float): Of all claims together.
        claims (int): Over which Bonferroni's correction is made.
    """
    each = level / claims
    rows = []
    for sd in deviations:
        for n in seeds:
            rows.append([
                f'{sd:g}', str(n),
                f'{difference_power(sd, n, margin, each):.3f}',
                f'{equivalence_power(sd, n, margin, each):.3f}'])
        rows.append([
            f'{sd:g}', f'for {POWER:.0%} power',
            str(seeds_needed(lambda n, sd=sd: difference_power(
                sd, n, margin, each))),
            str(seeds_needed(lambda n, sd=sd: equivalence_power(
                sd, n, margin, each)))])
    return Sheet(
        f'Power at level {level:g} / {claims} = {each:g}', [
            'Deviation of the paired differences', 'seeds',
            f'a difference of {margin:g} is found',
            f'equivalence within {margin:g} is shown'
        ], rows, [
            'Paired two-sided t-test; two one-sided paired t-tests at a true '
            'difference of 0.'
        ], labels=2)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--sd', type=float, nargs='+', required=True,
                        help='standard deviations of the paired differences')
    parser.add_argument('--seeds', type=int, nargs='+', required=True)
    parser.add_argument('--margin', type=float, default=0.5,
                        help='smallest difference that matters. Default: 0.5')
    parser.add_argument('--level', type=float, default=0.05,
                        help='of all claims together. Default: 0.05')
    parser.add_argument('--claims', type=int, default=1,
                        help='claims to correct for. Default: 1')
    args = parser.parse_args()
    if args.claims < 1:
        parser.error(f'--claims must be at least 1, got {args.claims}')
    try:
        sheet = power_sheet(args.sd, args.seeds, args.margin, args.level,
                            args.claims)
    except ValueError as error:
        parser.error(str(error))
    print(sheet.to_markdown())


if __name__ == '__main__':
    main()
