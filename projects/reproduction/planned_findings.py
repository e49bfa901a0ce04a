"""Verdicts of claims that were planned before their runs."""

from collections.abc import Callable, Iterator, Sequence

from .claims import PLAN, VARIANCE, Claim, PlannedClaim
from .columns import Column
from .comparisons import (
    LEVEL,
    UNDECIDED,
    WAITING,
    Comparison,
    VarianceComparison,
    judge,
)
from .findings import (
    Finding,
    claim_labels,
    compare_pairs,
    margin_of,
    quantity_value,
)


def judge_plan(columns: Sequence[Column],
               plan: Sequence[PlannedClaim] = PLAN) -> list[Finding]:
    """Judge the planned claims, at a level corrected for their number.

    Args:
        columns (Sequence[Column]): All columns.
        plan (Sequence[PlannedClaim]): Defaults to :data:`PLAN`.

    Raises:
        ValueError: A planned claim is of a column or row that there is not,
            or rows were run with different settings.
    """
    findings = []
    for planned in plan:
        claim, column = planned.claim, next(
            (c for c in columns if (c.table, c.name) ==
             (planned.table, planned.column)), None)
        pairs = column and claim_labels(claim, column)
        if not pairs or len(pairs) < len(claim.pairs):
            raise ValueError(
                f'planned claim {claim.text!r}: table {planned.table!r} has '
                f'no column {planned.column!r}, or not all of its rows there')
        column.check([row for names in pairs for row in names])
        compare = (_compare_variances if claim.kind == VARIANCE
                   else compare_pairs)
        found = tuple(compare(claim, column, pairs,
                              quantity_value(claim.quantity), planned.seeds))
        level = LEVEL / len(plan)
        margin = margin_of(claim)
        verdict = judge(found, margin, level)
        findings.append(Finding(
            claim, column, comparisons=() if verdict == WAITING else found,
            lines=_planned_lines(found, verdict, margin, level),
            verdict=verdict))
    return findings


def _planned_lines(comparisons: Sequence[Comparison | VarianceComparison],
                   verdict: str, margin: float | None,
                   level: float) -> tuple[str, ...]:
    if verdict == WAITING:
        return tuple(f'{c.name}: {c.seeds} of {c.planned} seeds'
                     for c in comparisons)
    lines = []
    for c in comparisons:
        line = f'{c.name}: is there a difference? p = {c.p:.2g}'
        if margin is not None:
            equivalence = c.equivalence_p(margin)
            line += (f'; is it smaller than {margin} points? '
                     f'p = {equivalence:.2g}')
        lines.append(f'{line} (level {level:.2g})')
        if margin is not None and max(c.p, equivalence) < level:
            lines.append(f'{c.name}: there is a difference, and it is too '
                         'small to matter')
    if verdict == UNDECIDED and margin is not None:
        lines += [c.needed(margin, level) for c in comparisons]
    return tuple(lines)


def _compare_variances(
        claim: Claim, column: Column, labels: Sequence[tuple[str, str]],
        value: Callable, seeds: range) -> Iterator[VarianceComparison]:
    for names in labels:
        values = (tuple(
            value(r) for r in column.results[name]
            if r['seed'] in seeds and value(r) is not None) for name in names)
        yield VarianceComparison(' and '.join(names), *values, len(seeds))
