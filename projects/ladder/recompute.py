"""The verdicts from scratch, computed a second time from their rows.

    python -m projects.ladder.recompute

This program shares no code with the one that wrote the rows and gave the
verdicts. It knows PLAN.md and the rows alone: it counts right answers again,
and leaves the tests to SciPy.

It ends with an error where the rows are not those of the plan.
"""

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

from scipy.stats import ttest_1samp

FIRST, SECONDS = 'stepnet', ('sigmoid-bias', 'norms-start')
PICTURES_A_CLASS = 1000
MARGIN, LEVEL = 0.5, 0.05
SEEDS = 12
SHARED = 'body', 'rate', 'dtype', 'commit', 'torch', 'cpu'
"""What all rows of a seed have in common."""


def read(folder: Path) -> dict[tuple[str, int], dict]:
    """The rows by rung and seed, once each."""
    rows = [
        json.loads(line)
        for file in folder.glob('*.jsonl')
        for line in file.read_text().splitlines()
    ]
    times = Counter((row['rung'], row['seed']) for row in rows)
    twice = sorted(run for run, count in times.items() if count > 1)
    if twice:
        sys.exit(f'{folder} has more than one row of {twice}; expected one')
    for seed in {row['seed'] for row in rows}:
        for key in SHARED:
            values = {row[key] for row in rows if row['seed'] == seed}
            if len(values) > 1:
                sys.exit(
                    f'rows of seed {seed} in {folder} have {key} '
                    f'{sorted(values)}; expected one value'
                )
    return {(row['rung'], row['seed']): row for row in rows}


def count_right(row: dict) -> int:
    """How many of the 10,000 answers are right; they stand class by class."""
    right = sum(
        int(answer) == picture // PICTURES_A_CLASS
        for picture, answer in enumerate(row['answers'])
    )
    percent = right / len(row['answers']) * 100
    if len(row['answers']) != 10 * PICTURES_A_CLASS or (
        abs(percent - row['accuracy']) > 1e-9
    ):
        sys.exit(
            f'{row["rung"]}, seed {row["seed"]}: {right} of '
            f'{len(row["answers"])} answers are right, and its accuracy is '
            f'{row["accuracy"]}'
        )
    return right


def judge(differences: list[float], is_found: bool) -> str:
    """The plan's word for differences in points."""
    below = ttest_1samp(differences, MARGIN, alternative='less').pvalue
    above = ttest_1samp(differences, -MARGIN, alternative='greater').pvalue
    small = max(below, above) < LEVEL
    words = []
    if is_found:
        words.append('ahead' if sum(differences) > 0 else 'behind')
    if small:
        words.append(
            f'{"by" if is_found else "worth"} less than {MARGIN} points'
        )
    return ', '.join(words) or 'undecided'


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        '--rows',
        type=Path,
        default=Path(__file__).parent / 'results' / 'scratch',
        help='where the rows are. Default: those of the repository',
    )
    parser.add_argument(
        '--ended',
        action='store_true',
        help='no more seeds will come: verdicts of those that are there',
    )
    args = parser.parse_args(argv)
    rows = read(args.rows)
    seeds = [
        seed
        for seed in range(SEEDS)
        if all((rung, seed) in rows for rung in (FIRST, *SECONDS))
    ]
    if len(seeds) < SEEDS and not args.ended:
        sys.exit(
            f'{args.rows} has {len(seeds)} whole seeds; the plan looks once, '
            f'after {SEEDS}: wait for them, or give --ended'
        )
    right = {run: count_right(row) for run, row in rows.items()}
    tests = {}
    for second in SECONDS:
        points = [
            (right[FIRST, seed] - right[second, seed]) / 100 for seed in seeds
        ]
        tests[second] = points, ttest_1samp(points, 0)
    # Holm over two questions: the smaller p first, at half of the level.
    first, last = sorted(SECONDS, key=lambda name: tests[name][1].pvalue)
    found = {first: tests[first][1].pvalue <= LEVEL / 2}
    found[last] = found[first] and tests[last][1].pvalue <= LEVEL
    for second, (points, test) in tests.items():
        low, high = test.confidence_interval(1 - LEVEL / 2)
        print(
            f'{FIRST} − {second}, {len(seeds)} seeds: '
            f'{sum(points) / len(points):+.2f} points, 97.5 % interval '
            f'{low:+.2f} to {high:+.2f}, p {test.pvalue:.3g}: '
            f'{judge(points, found[second])}'
        )


if __name__ == '__main__':
    main()
