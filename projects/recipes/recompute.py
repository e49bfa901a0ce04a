"""The cheap ladder's verdicts, computed a second time from its rows.

    python -m projects.recipes.recompute

This program shares no code with the one that wrote the rows and gave the
verdicts. It knows PLAN_LADDER.md and the rows alone. Where the plan takes
variances of means, this program takes the sums of squares of a table, seeds
by pictures, in whole numbers and fractions.

It ends with an error where the rows of the main rungs are not those of the
plan.
"""

import argparse
import json
import math
import sys
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from scipy.stats import t as student

NETWORKS = ('resnet20', 'resnet32', 'efficientnet_lite0')
FIRST = 'stepnet'
SECONDS = ('layer-scale', 'norms')
RATES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
SEARCH_SEED = 100
SEEDS = range(8)
PICTURES_A_CLASS = 800
PICTURES = 10 * PICTURES_A_CLASS
MARGIN = 0.5
LEVEL = 0.05


class Result(NamedTuple):
    """What one question's table says."""

    difference: float
    """Points of accuracy."""
    error: float
    """Standard error, in points."""
    freedom: float
    """Satterthwaite's degrees of freedom."""

    def p(self):
        """Of the two-sided test of no difference."""
        return 2 * student.sf(abs(self.difference) / self.error, self.freedom)

    def interval(self, confidence):
        return student.interval(
            confidence, self.freedom, self.difference, self.error
        )

    def is_small(self):
        """Whether two one-sided tests each find less than the margin."""
        above = (self.difference + MARGIN) / self.error
        below = (self.difference - MARGIN) / self.error
        return (
            max(
                student.sf(above, self.freedom),
                student.cdf(below, self.freedom),
            )
            < LEVEL
        )


def check_rows(file, rows, expected):
    """Exit where a row is missing, doubled, or not among the expected."""
    found = Counter(
        (row['network'], row['rung'], row['seed'], row['rate']) for row in rows
    )
    for key in (*found, *expected):
        if found[key] != expected.count(key):
            sys.exit(
                f'{file} has {found[key]} of the row {key}; expected '
                f'{expected.count(key)}: one at each of the five rates with '
                'seed 100, and one at the rate of its lowest loss with each '
                'seed from 0 to 7.'
            )


def read_network(folder, network):
    """Read the rows of a network's main rungs, and check them.

    Returns:
        The losses of the search, {(rung, rate): loss}; the chosen rates,
        {rung: rate}; and the other rows, {(rung, seed): row}.
    """
    file = Path(folder, f'{network}.jsonl')
    rungs = (FIRST, *SECONDS)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows = [row for row in rows if row['rung'] in rungs]
    search = [row for row in rows if row['seed'] == SEARCH_SEED]
    trained = [row for row in rows if row['seed'] != SEARCH_SEED]

    check_rows(
        file,
        search,
        [
            (network, rung, SEARCH_SEED, rate)
            for rung in rungs
            for rate in RATES
        ],
    )
    losses = {(row['rung'], row['rate']): row['loss'] for row in search}
    chosen = {
        rung: min(RATES, key=lambda rate: losses[rung, rate]) for rung in rungs
    }
    check_rows(
        file,
        trained,
        [
            (network, rung, seed, chosen[rung])
            for rung in rungs
            for seed in SEEDS
        ],
    )

    for seed in (SEARCH_SEED, *SEEDS):
        commits = {row['commit'] for row in rows if row['seed'] == seed}
        if len(commits) > 1:
            sys.exit(
                f'{file} has rows of seed {seed} from the commits '
                f'{sorted(commits)}; expected one commit.'
            )
    return losses, chosen, {(row['rung'], row['seed']): row for row in trained}


def right_answers(row):
    """Tell for each test picture whether its answer is its class."""
    answers = row['answers']
    if len(answers) != PICTURES:
        sys.exit(
            f'{row["network"]}, {row["rung"]}, seed {row["seed"]} has '
            f'{len(answers)} answers; expected {PICTURES}.'
        )
    return [
        int(answer) == picture // PICTURES_A_CLASS
        for picture, answer in enumerate(answers)
    ]


def compare(first, second):
    """Analyse the table of d = first - second, seeds by pictures.

    With S seeds and P pictures, the mean square of the seeds is P times the
    variance of their means, and that of the pictures is S times the variance
    of theirs. So the plan's variance of the difference is the sum of the two
    mean squares, divided by S P.

    Args:
        first: for each seed a list, whether the rung was right, by picture.
        second: the same of the other rung.
    """
    seeds, pictures = len(first), len(first[0])
    of_seed, of_picture = [0] * seeds, [0] * pictures
    for seed, pair in enumerate(zip(first, second)):
        for picture, (one, other) in enumerate(zip(*pair)):
            of_seed[seed] += one - other
            of_picture[picture] += one - other

    cells = seeds * pictures
    total = sum(of_seed)
    of_mean = Fraction(total**2, cells)
    squares_seeds = Fraction(sum(d * d for d in of_seed), pictures) - of_mean
    squares_pictures = (
        Fraction(sum(d * d for d in of_picture), seeds) - of_mean
    )
    mean_seeds = squares_seeds / (seeds - 1)
    mean_pictures = squares_pictures / (pictures - 1)
    both = mean_seeds + mean_pictures
    freedom = both**2 / (
        mean_seeds**2 / (seeds - 1) + mean_pictures**2 / (pictures - 1)
    )
    return Result(
        100 * total / cells, 100 * math.sqrt(both / cells), float(freedom)
    )


def holm(p_values):
    """Tell for each question whether its test finds a difference.

    The smallest p is held against the level divided by the number of
    questions, the next against the level divided by one less, and so on.
    All after the first that is too large find nothing.
    """
    found = dict.fromkeys(p_values, False)
    for rank, question in enumerate(sorted(p_values, key=p_values.get)):
        if p_values[question] > LEVEL / (len(p_values) - rank):
            break
        found[question] = True
    return found


def verdict(result, found):
    """Say it in the plan's words."""
    if found:
        side = 'ahead' if result.difference > 0 else 'behind'
        return side + (
            ', by less than half a point' if result.is_small() else ''
        )
    return 'worth less than half a point' if result.is_small() else 'undecided'


def print_rows(losses, chosen, rows, right):
    for rung, rate in chosen.items():
        end = rate in (RATES[0], RATES[-1])
        print(
            f'  {rung}: rate {rate:g} has the lowest loss'
            + end * ', and is the first or last of the five'
        )
        print(
            '    '
            + ', '.join(f'{losses[rung, one]:.4f} at {one:g}' for one in RATES)
        )
    # A picture is 0.0125 points; float32 rounds a share by 3e-6 points.
    wrong = [
        f'{rung} with seed {seed}'
        for rung, seed in rows
        if abs(
            rows[rung, seed]['accuracy']
            - 100 * sum(right[rung, seed]) / PICTURES
        )
        > 1e-4
    ]
    print(
        '  accuracy is not that of the answers: ' + '; '.join(wrong)
        if wrong
        else f'  accuracy is that of the answers: {len(rows)} rows'
    )


def print_question(second, result, found):
    low, high = result.interval(0.95)
    low_90, high_90 = result.interval(0.90)
    print(
        f'  {FIRST} - {second}: {verdict(result, found)}\n'
        f'    difference {result.difference:.4f} points, standard error '
        f'{result.error:.4f}, {result.freedom:.2f} degrees of freedom\n'
        f'    95 % interval {low:.4f} to {high:.4f}, '
        f'90 % interval {low_90:.4f} to {high_90:.4f}\n'
        f'    p {result.p():.4g}, '
        f'Holm: {"found" if found else "not found"}'
    )


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        '--rows',
        default=Path(__file__).parent / 'ladder',
        help='the folder of the rows, a file NETWORK.jsonl each. Default: '
        'that of the repository',
    )
    folder = parser.parse_args(arguments).rows
    networks, results = {}, {}
    for network in NETWORKS:
        losses, chosen, rows = read_network(folder, network)
        right = {key: right_answers(row) for key, row in rows.items()}
        networks[network] = losses, chosen, rows, right
        for second in SECONDS:
            results[network, second] = compare(
                [right[FIRST, seed] for seed in SEEDS],
                [right[second, seed] for seed in SEEDS],
            )
    found = holm(
        {question: result.p() for question, result in results.items()}
    )
    for network in NETWORKS:
        print(network)
        print_rows(*networks[network])
        for second in SECONDS:
            print_question(
                second, results[network, second], found[network, second]
            )


if __name__ == '__main__':
    main()
