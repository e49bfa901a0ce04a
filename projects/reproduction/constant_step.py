"""A constant step against an adaptive one: what the rows say by the plan.

    python -m projects.reproduction.constant_step

PLAN_CONSTANT_STEP.md has the question, the rows and the rule.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from .comparisons import interval
from .report import by_seed, markdown
from .rows import RESULTS, read_rows

ROWS = {
    name: f'resnet164_{config}_cifar10-10k'
    for name, config in (
        ('plain', 'plain'),
        ('frozen', 'stepnet-frozen'),
        ('StepNet', 'stepnet'),
    )
}
LEAD = 14.0
"""Points by which StepNet was ahead, which are to be explained."""

LEVEL = 0.025
"""Of each of two looks, after four seeds and after eight."""


def verdict(constant: Sequence[float], adaptive: Sequence[float]) -> str:
    """Judge by the intervals of both differences.

    Args:
        constant (Sequence[float]): Frozen minus plain, a number a seed.
        adaptive (Sequence[float]): StepNet minus frozen.
    """
    (a, a_end), (b, b_end) = (
        interval(values, LEVEL) for values in (constant, adaptive)
    )
    if a > 0 and b > 0:
        return 'both have a share'
    if a > 0 and b_end < LEAD:
        return 'a constant step explains the lead'
    if b > 0 and a_end < LEAD:
        return 'the adaptive step explains the lead'
    return 'undecided'


def program(row: dict) -> set[tuple[str, ...]]:
    """Machine, PyTorch and commit that a row was made with."""
    return {
        tuple(start[key] for key in ('machine', 'torch', 'commit'))
        for start in row['starts']
    }


def table(results: Path = RESULTS / 'constant_step') -> str:
    """Accuracies by seed, both differences, and the verdict.

    Raises:
        ValueError: Rows are of several programs, whose difference would be
            that of the programs, too.
    """
    rows = {name: read_rows(config, results) for name, config in ROWS.items()}
    programs = set().union(
        *(program(row) for found in rows.values() for row in found)
    )
    if len(programs) > 1:
        raise ValueError(
            f'{results}: rows are of {len(programs)} programs, '
            'expected one; keep the others in another folder'
        )
    found = {name: by_seed(r, 'Accuracy') for name, r in rows.items()}
    seeds = sorted(set.union(*map(set, found.values())))
    lines = [
        [name, *(f'{values[s]:.2f}' if s in values else '–' for s in seeds)]
        for name, values in found.items()
    ]
    text = markdown(['accuracy (%), seed', *map(str, seeds)], lines)
    common = sorted(set.intersection(*map(set, found.values())))
    constant, adaptive = (
        [found[a][s] - found[b][s] for s in common]
        for a, b in (('frozen', 'plain'), ('StepNet', 'frozen'))
    )
    for name, values in (
        ('frozen − plain', constant),
        ('StepNet − frozen', adaptive),
    ):
        low, high = interval(values, LEVEL)
        text += (
            f'\n- {name}: {sum(values) / len(values):+.2f}, '
            f'{1 - LEVEL:.1%} interval {low:+.2f} to {high:+.2f} '
            f'({len(values)} seeds)'
        )
    return f'{text}\n\nVerdict: {verdict(constant, adaptive)}.'


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args()
    print(table())


if __name__ == '__main__':
    main()
